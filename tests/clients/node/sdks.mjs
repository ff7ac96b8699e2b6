// Writes with real SDKs as their users make them: TAG TIMES NAME=BASE...
// Each client's writes carry TAG.NUMBER. and are the same. Prints a line for each: the client, and the id that the API gave or the
// error that the SDK raised.
const [tags, times, ...named] = process.argv.slice(2)

const things = (base) => `${base}/v1/things/sdk`
const fields = { 'Content-Type': 'application/json' }
const json = (tag) => ({ method: 'POST', headers: fields, body: JSON.stringify({ tag }) })
const ok = async (answer) => {
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`)
  return (await answer.json()).id
}
const withAxios = (module) => async (base, tag) => {
  const { default: axios } = await import(module)
  return (await axios.post(things(base), { tag })).data.id
}
const proxy = () => process.env.HTTPS_PROXY || process.env.HTTP_PROXY

const clients = {
  fetch: async (base, tag) => ok(await fetch(things(base), json(tag))),
  axios: withAxios('axios'),
  'axios 0.27': withAxios('axios-0.27'),
  got: async (base, tag) => {
    const { default: got } = await import('got')
    return (await got.post(things(base), { json: { tag } }).json()).id
  },
  'undici ProxyAgent': async (base, tag) => {
    const { fetch, ProxyAgent } = await import('undici')
    const dispatcher = proxy() ? new ProxyAgent(proxy()) : undefined
    return ok(await fetch(things(base), { ...json(tag), dispatcher })).finally(() => dispatcher?.close())
  },
  'undici EnvHttpProxyAgent': async (base, tag) => {
    const { fetch, EnvHttpProxyAgent } = await import('undici')
    const dispatcher = new EnvHttpProxyAgent()
    return ok(await fetch(things(base), { ...json(tag), dispatcher })).finally(() => dispatcher.close())
  },
  '@slack/web-api': async (base, tag) => {
    const { WebClient, LogLevel } = await import('@slack/web-api')
    const client = new WebClient('xoxb-test', {
      slackApiUrl: `${base}/api/`, logLevel: LogLevel.ERROR, retryConfig: { retries: 2, minTimeout: 20, maxTimeout: 20 }
    })
    return (await client.chat.postMessage({ channel: 'C024BE91L', text: tag })).ts
  },
  stripe: async (base, tag) => {
    // It takes host, port and protocol, and no path: for the gateway, a listener of its own.
    const { default: Stripe } = await import('stripe')
    const { protocol, hostname: host, port } = new URL(base)
    const client = new Stripe('sk_test_1', { protocol: protocol.slice(0, -1), host, port, telemetry: false })
    return (await client.refunds.create({ charge: tag, amount: 500 })).id
  },
  openai: async (base, tag) => {
    const { default: OpenAI, toFile } = await import('openai')
    const client = new OpenAI({ apiKey: 'sk-test', baseURL: `${base}/v1` })
    return (await client.files.create({ file: await toFile(Buffer.from(tag), 'calls.jsonl'), purpose: 'batch' })).id
  },
  resend: async (base, tag) => {
    const { Resend } = await import('resend')
    const client = new Resend('re_test', { baseUrl: base })
    const who = { from: 'shop@example.test', to: ['ada@example.test'] }
    const { data, error } = await client.emails.send({ ...who, subject: tag, text: 'Hello' })
    if (error) throw new Error(error.message)
    return data.id
  },
  twilio: async (base, tag) => {
    const { default: twilio } = await import('twilio')
    const client = twilio('AC1', 'token')
    client.api.baseUrl = base
    return (await client.messages.create({ to: '+15550100', from: '+15550101', body: tag })).sid
  },
  octokit: async (base, tag) => {
    const { Octokit } = await import('octokit')
    const client = new Octokit({ auth: 'ghp_test', baseUrl: base, retry: { enabled: false } })
    const made = await client.rest.issues.create({ owner: 'acme', repo: 'shop', title: tag, body: 'Hello' })
    return String(made.data.number)
  }
}

for (const [number, each] of named.entries()) {
  const at = each.indexOf('=')
  const client = each.slice(0, at)
  for (let n = 0; n < Number(times); n++) {
    let line
    try {
      line = { client, id: await clients[client](each.slice(at + 1), `${tags}.${number}.`) }
    } catch (error) {
      line = { client, error: error.name, text: String(error.message) }
    }
    console.log(JSON.stringify(line))
  }
}
process.exit()
