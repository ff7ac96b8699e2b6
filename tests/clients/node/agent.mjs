// A Node agent: a streaming model that calls one tool, which writes: MODEL URL. Nothing here knows of
// a proxy but the step around the tool. Prints each event of the model as it comes.
import OpenAI from 'openai'

const [baseURL, url] = process.argv.slice(2)
const show = (line) => console.log(JSON.stringify(line))
const client = new OpenAI({ apiKey: 'sk-test', baseURL })
const tools = [{ type: 'function', function: { name: 'refund', parameters: { type: 'object', properties: {} } } }]

const refund = async (body) => {
  const answer = await fetch(url, { method: 'POST', body })
  const text = await answer.text()
  show({ tool: JSON.parse(text).id, outcome: answer.headers.get('onceproxy-outcome') })
  return text
}

const messages = [{ role: 'user', content: 'Refund it.' }]
for (let turn = 0, more = true; more && turn < 5; turn++) {
  const calls = []
  let said = ''
  for await (const chunk of await client.chat.completions.create({ model: 'm', messages, tools, stream: true })) {
    const { content, tool_calls: made } = chunk.choices[0].delta
    show({ event: content ?? null })
    said += content ?? ''
    calls.push(...(made ?? []))
  }
  messages.push({ role: 'assistant', content: said, ...(calls.length && { tool_calls: calls }) })
  for (const call of calls) {
    const content = await globalThis.onceproxy.step(call.id, () => refund(call.function.arguments))
    messages.push({ role: 'tool', tool_call_id: call.id, content })
  }
  more = calls.length > 0
}
show({ done: messages.filter(({ role }) => role === 'tool').length })
