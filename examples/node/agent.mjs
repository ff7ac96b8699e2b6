// A Node agent: a loop around a model, one tool, and its notes in a file. Nothing but Node itself.
//
// The notes hold the model's answer, with the id of the tool call, before the tool runs; and the
// tool runs inside onceproxy.step(id), which `onceproxy run` puts in reach.
import { existsSync, openSync, writeSync, fsyncSync, closeSync, readFileSync, renameSync } from 'node:fs'
import { setTimeout } from 'node:timers/promises'

const { OPENAI_BASE_URL: model, SHOP_URL: shop, NOTES: notes } = process.env
const tool = {
  type: 'function',
  function: {
    name: 'refund',
    parameters: { type: 'object', properties: { charge: { type: 'string' }, amount: { type: 'integer' } } }
  }
}
const post = (url, body) =>
  fetch(url, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) })

async function refund (wanted) {
  for (;;) {
    const answer = await post(`${shop}/v1/refunds`, wanted)
    if (answer.headers.get('x-should-retry') !== 'true') return answer.text() // a refusal too: it says what to do
    await setTimeout(Number(answer.headers.get('retry-after')) * 1000)
  }
}

async function ask (messages) {
  const answer = await post(`${model}/chat/completions`, { model: 'scripted', messages, tools: [tool] })
  return (await answer.json()).choices[0].message
}

function remember (messages) {
  const file = openSync(`${notes}.new`, 'w')
  writeSync(file, JSON.stringify(messages))
  fsyncSync(file)
  closeSync(file)
  renameSync(`${notes}.new`, notes)
}

let messages = [{ role: 'user', content: 'Please refund ch_1842' }]
if (existsSync(notes)) {
  messages = JSON.parse(readFileSync(notes, 'utf8'))
  console.log('agent: going on from my notes')
}
while (messages.at(-1).role !== 'assistant' || messages.at(-1).tool_calls) {
  const [call] = messages.at(-1).tool_calls ?? []
  if (call) {
    console.log(`agent: ${call.function.name} ${call.function.arguments}`)
    const content = await globalThis.onceproxy.step(call.id, () => refund(JSON.parse(call.function.arguments)))
    messages.push({ role: 'tool', tool_call_id: call.id, content })
  } else {
    messages.push(await ask(messages))
  }
  remember(messages)
}
console.log(`agent: ${messages.at(-1).content}`)
