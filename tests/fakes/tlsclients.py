"""Clients of other makes that open a tunnel and say whether they trust what is at its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

PYTHON = """
import socket, ssl, sys
port = int(sys.argv[1])
context = ssl.create_default_context()  # reads SSL_CERT_FILE
context.verify_flags |= ssl.VERIFY_X509_STRICT
for line in sys.stdin:
    sock = socket.create_connection(("127.0.0.1", port))
    name, _, at = line.strip().rpartition(":")
    sock.sendall(f"CONNECT {name}:{at} HTTP/1.1\\r\\nHost: {name}:{at}\\r\\n\\r\\n".encode())
    sock.recv(65536)
    try:
        with context.wrap_socket(sock, server_hostname=name):
            print("trusted", flush=True)
    except ssl.SSLCertVerificationError as error:
        print("refused", error.verify_message, flush=True)
    except OSError as error:
        print("broken", type(error).__name__, error, flush=True)
"""

NODE = """
const http = require("node:http"), tls = require("node:tls"), lines = require("node:readline");
const port = Number(process.argv[2]);
(async () => {
  for await (const line of lines.createInterface({ input: process.stdin })) {
    const at = line.trim(), name = at.slice(0, at.lastIndexOf(":"));
    await new Promise((done) => {
      const ask = http.request({ host: "127.0.0.1", port, method: "CONNECT", path: at });
      ask.on("connect", (_, socket) => {
        const ip = /^[0-9.]+$/.test(name);
        const options = { socket, host: name, ...(ip ? {} : { servername: name }) };
        const end = tls.connect(options, () => { console.log("trusted"); end.destroy(); done(); });
        end.on("error", (error) => { console.log("refused", error.code); done(); });
      });
      ask.on("error", (error) => { console.log("broken", error.code); done(); });
      ask.end();
    });
  }
})();
"""

NODE_BINARY = shutil.which("node")


class Client:
    """A process that reads the roots it trusts when it starts, and never again."""

    def __init__(self, make: str, bundle: Path, port: int, folder: Path) -> None:
        self._make = make
        self._bundle = bundle
        self._port = port
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Client:
        script = self._folder / f"client.{'cjs' if self._make == 'node' else 'py'}"
        script.write_text(NODE if self._make == "node" else PYTHON)
        program = NODE_BINARY if self._make == "node" else sys.executable
        assert program is not None
        variable = "NODE_EXTRA_CA_CERTS" if self._make == "node" else "SSL_CERT_FILE"
        self._process = await asyncio.create_subprocess_exec(
            program,
            str(script),
            str(self._port),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], variable: str(self._bundle)},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def tries(self, where: str) -> str:
        """``trusted``, or ``refused`` and why."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{where}\n".encode())
        return (await self._process.stdout.readline()).decode().strip()
