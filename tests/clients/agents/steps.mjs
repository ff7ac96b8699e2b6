// Three tool calls at once, by fetch or https on one pool of connections: CLIENT URL. Then one after
// the other, and once more at once, so that connections change hands.
import https from 'node:https'

const [client, url] = process.argv.slice(2)
const agent = new https.Agent({ keepAlive: true, maxSockets: 3 })

const byFetch = async (body) => {
  const answer = await fetch(url, { method: 'POST', body })
  return [(name) => answer.headers.get(name), await answer.text()]
}
const byHttps = (body) => new Promise((resolve, reject) => {
  const sent = https.request(url, { method: 'POST', agent }, async (answer) => {
    let text = ''
    for await (const chunk of answer) text += chunk
    resolve([(name) => answer.headers[name], text])
  })
  sent.on('error', reject)
  sent.end(body)
})
const send = { fetch: byFetch, https: byHttps }[client]

const call = (step) => globalThis.onceproxy.step(step, async () => {
  await new Promise(setImmediate) // the others come in between
  const [header, text] = await send(JSON.stringify({ step }))
  const { id, echo } = JSON.parse(text)
  console.log(JSON.stringify({
    step,
    id,
    said: JSON.parse(echo).step,
    'Onceproxy-Operation': header('onceproxy-operation'),
    'Onceproxy-Outcome': header('onceproxy-outcome')
  }))
})

const steps = ['call_a', 'call_b', 'call_c']
await Promise.all(steps.map(call))
for (const step of steps) await call(step)
await Promise.all(steps.toReversed().map(call))
agent.destroy()
