"""Field reports as tests: what happened to others, played against this proxy.

Each test has the mark ``report(id, link, happened, does)``; a further test of the same report gives
the id alone. ``tools/field_reports.py`` makes docs/field-reports.md of the marks. The right outcome
is what docs/guarantees.md says; where the report asked for another one, the test says so.

Reports that are not here:

| comes with | reports |
|---|---|
| approvals | R11, R13, R14, R19, R20, R22, R82; of R16, R17, R23, R25, R83 their approvals |
| budgets | R76, R77, R79, R80; of R44, R62 the units charged |
| cases of runs | R10 (a run's id used for another input), R50 (a call of a closed run), |
| | R85 (a run's status) |
| fleets | R46 (a lease that runs out), R47 (two proxies, one ledger); of R52 parking the loser |
"""
