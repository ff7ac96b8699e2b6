// One write with fetch, with node:http and with node:https, to PLAIN and SECURE: an agent that knows
// nothing of any proxy. A resumed run is a second process, so each is called once.
import http from 'node:http'
import { request } from 'node:https'

const [plain, secure] = process.argv.slice(2)
const names = ['onceproxy-operation', 'onceproxy-outcome', 'idempotent-replayed']
const show = (client, status, header, body) => {
  const shown = Object.fromEntries(names.map((name) => [name, header(name) ?? null]))
  console.log(JSON.stringify({ client, status, body, ...shown }))
}

const fetched = async (client, url) => {
  const answer = await fetch(url, { method: 'POST', body: JSON.stringify({ amount: 5 }) })
  show(client, answer.status, (name) => answer.headers.get(name), await answer.text())
}

const requested = (client, send, url) => new Promise((resolve, reject) => {
  const sent = send(url, { method: 'POST', agent: false }, async (answer) => {
    let body = ''
    for await (const chunk of answer) body += chunk
    show(client, answer.statusCode, (name) => answer.headers[name], body)
    resolve()
  })
  sent.on('error', reject)
  sent.end('amount=5')
})

await fetched('fetch-http', plain + '/fetch')
await fetched('fetch-https', secure + '/fetch')
await requested('http', http.request, plain + '/http')
await requested('https', request, secure + '/https')
