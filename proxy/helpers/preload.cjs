// Sends fetch, http and https of this Node process through onceproxy without proxy support in the
// client or trust in a CA: https://HOST/PATH becomes http://127.0.0.1:8901/via/https/HOST/PATH.
//
//   export HTTP_PROXY=http://RUN:STEP@127.0.0.1:8901      (RUN:STEP%3ATOKEN with a run token)
//   node --require /path/to/preload.cjs agent.js
//
// A tool call is named with  onceproxy.step(toolCallId, async () => { ... })  and, in a process that
// serves many runs (`onceproxy run --run-id -`), a run with  onceproxy.run(runId, async () => { ... })
'use strict'
const http = require('node:http')
const https = require('node:https')
const { AsyncLocalStorage } = require('node:async_hooks')

const env = (name) => process.env[name] || process.env[name.toLowerCase()] || ''
const names = new AsyncLocalStorage()
const naming = (what) => (id, work) => names.run({ ...names.getStore(), [what]: encodeURIComponent(String(id)) }, work)
globalThis.onceproxy = { run: naming('run'), step: naming('step') }

if (env('HTTP_PROXY')) {
  const proxy = new URL(env('HTTP_PROXY'))
  const [run, secret] = [proxy.username, proxy.password].map((part) => decodeURIComponent(part))
  const [, named, token] = /^(?:(.*):)?(once_[\w-]{20,200})$/s.exec(secret) || [, secret]
  const [ownRun, ownStep] = [run, named].map((part) => part === '-' ? '' : part)
  const spared = env('NO_PROXY').toLowerCase().split(',').map((entry) => entry.trim()).filter(Boolean)
  const portOf = (url) => url.port || (url.protocol === 'https:' ? '443' : '80')

  const stays = (url) => !/^https?:$/.test(url.protocol) ||
    (url.hostname === proxy.hostname && portOf(url) === portOf(proxy)) ||
    spared.some((entry) => {
      const [, name, port] = /^\.?(.*?)(?::(\d+))?$/.exec(entry)
      return (!port || port === portOf(url)) &&
        (name === '*' || url.hostname === name || url.hostname.endsWith('.' + name))
    })
  const identity = () => {
    const named = names.getStore() || {}
    return [['X-Run-Id', named.run || ownRun], ['X-Step-Id', named.step || ownStep], ['X-Run-Token', token]].filter(([, text]) => text)
  }
  const via = (url) => `/via/${url.protocol.slice(0, -1)}/${url.host}`

  // fetch. It follows redirects itself, as a Location is relative to the address that was meant.
  const send = globalThis.fetch
  const through = async (address, init, hops) => {
    const url = new URL(address)
    if (stays(url)) return send(url, init)
    const { dispatcher, redirect = 'follow', ...rest } = init
    const headers = new Headers(rest.headers)
    for (const [name, text] of identity()) if (!headers.has(name)) headers.set(name, text)
    const target = `http://${proxy.host}${via(url)}${url.pathname}${url.search}`
    const response = await send(target, { ...rest, headers, redirect: 'manual' })
    Object.defineProperty(response, 'url', { value: url.href })
    const location = response.headers.get('location')
    if (redirect === 'manual' || !location || ![301, 302, 303, 307, 308].includes(response.status)) return response
    await response.body?.cancel()
    if (redirect === 'error' || hops === 20) throw new TypeError('fetch failed: redirect')
    const next = { ...rest, headers: new Headers(rest.headers), redirect }
    const method = String(rest.method || 'GET').toUpperCase()
    if (response.status < 307 && method !== 'GET' && method !== 'HEAD') {
      Object.assign(next, { method: 'GET', body: undefined })
      for (const name of ['content-type', 'content-length']) next.headers.delete(name)
    }
    const there = new URL(location, url)
    if (there.origin !== url.origin) for (const name of ['authorization', 'cookie']) next.headers.delete(name)
    return through(there, next, hops + 1)
  }
  globalThis.fetch = async (input, init = {}) => {
    if (!(input instanceof Request)) return through(input, init, 0)
    const request = new Request(input, init)
    const { url, method, headers, signal, redirect } = request
    const body = request.body ? await request.arrayBuffer() : undefined // so that it has a length
    return through(url, { method, headers, signal, redirect, body }, 0)
  }

  // http and https, on which most clients are built.
  const plain = http.request
  const agent = new http.Agent({ keepAlive: true })
  for (const module of [http, https]) {
    const direct = module.request
    module.request = (...args) => {
      const done = typeof args.at(-1) === 'function' ? args.at(-1) : undefined
      const named = typeof args[0] === 'string' || args[0] instanceof URL
      const given = (named ? args[1] : args[0]) || {}
      const options = typeof given === 'function' ? {} : given
      const host = String(options.hostname || options.host || 'localhost')
      const url = new URL(named ? args[0] : `${options.protocol || (module === http ? 'http:' : 'https:')}//${host.includes(':') ? `[${host}]` : host}`)
      if (!named && (options.port || options.defaultPort)) url.port = options.port || options.defaultPort
      if (options.socketPath || options.createConnection || stays(url)) return direct(...args)
      const headers = Array.isArray(options.headers) ? pairs(options.headers) : { ...options.headers }
      const known = (name) => Object.keys(headers).find((key) => key.toLowerCase() === name.toLowerCase())
      delete headers[known('host')]
      for (const [name, text] of identity()) if (!known(name)) headers[name] = text
      const login = url.username && `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`
      const sent = plain({
        method: options.method, timeout: options.timeout, signal: options.signal, setHost: options.setHost,
        auth: options.auth || login || undefined, headers, agent, hostname: proxy.hostname, port: portOf(proxy),
        path: via(url) + (options.path || url.pathname + url.search)
      }, done)
      // stripe-node and others begin to write when the socket says secureConnect.
      if (url.protocol === 'https:') {
        sent.prependOnceListener('socket', (socket) => socket.connecting && socket.once('connect', () => socket.emit('secureConnect')))
      }
      return sent
    }
    module.get = (...args) => module.request(...args).end()
  }
  require('node:module').syncBuiltinESMExports() // for `import { request } from 'https'`
}

function pairs (list) {
  const flat = list.flat()
  return Object.fromEntries(flat.flatMap((name, at) => (at % 2 ? [] : [[name, flat[at + 1]]])))
}
