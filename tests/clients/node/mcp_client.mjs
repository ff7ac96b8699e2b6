// A call of a tool with the official Node SDKs: mcp_client.mjs URL MODE TOOL ARGUMENTS [META]
// MODE: v1 (@modelcontextprotocol/sdk, with sessions), or v2 (@modelcontextprotocol/client, 2026-07-28).

const [url, mode, tool, given, meta] = process.argv.slice(2)
const me = { name: 'agent', version: '1' }
let client, transport
if (mode === 'v1') {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js')
  const at = await import('@modelcontextprotocol/sdk/client/streamableHttp.js')
  client = new Client(me)
  transport = new at.StreamableHTTPClientTransport(new URL(url))
} else {
  const sdk = await import('@modelcontextprotocol/client')
  client = new sdk.Client(me, { versionNegotiation: { mode: { pin: '2026-07-28' } } })
  transport = new sdk.StreamableHTTPClientTransport(new URL(url))
}
await client.connect(transport)
await client.listTools()
const params = { name: tool, arguments: JSON.parse(given), ...(meta && { _meta: JSON.parse(meta) }) }
try {
  const result = await client.callTool(params)
  console.log(JSON.stringify({ text: result.content[0].text, error: result.isError ?? false }))
} catch (error) {
  console.log(JSON.stringify({ refused: error.message, data: error.data ?? null }))
}
await client.close()
process.exit(0)
