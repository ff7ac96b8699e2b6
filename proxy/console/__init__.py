"""The console: pages for operators on the control port, rendered here and readable without scripts.

It asks and acts through ``proxy.service`` alone. One file per page; ``words`` says what states,
reasons and events mean to a person, ``sessions`` who is signed in, ``site`` what guards each page.
"""
