#!/usr/bin/python3
"""A mail server on loopback for tests: STARTTLS or TLS, AUTH, refusals on request.

    smtpd.py MODE CERT KEY        MODE: starttls, tls, none

Prints its port, then one JSON object a line for each mail it took. Recipients that begin with `nobody` are refused,
those that begin with `later` for now.
"""

import asyncio
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult


class Handler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("nobody"):
            return "550 5.1.1 no such user here"
        if address.startswith("later"):
            return "451 4.3.0 come back later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        mail = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "content": envelope.content.decode("ascii"),
            "tls": server.transport.get_extra_info("ssl_object") is not None,
            "user": session.auth_data.decode() if session.authenticated else None,
            "hello": session.host_name,
        }
        print(json.dumps(mail), flush=True)
        return "250 2.0.0 queued as TEST-1"


def authenticate(server, session, envelope, mechanism, data):
    if data.login == b"mill" and data.password == b"correct horse":
        return AuthResult(success=True, auth_data=data.login)
    return AuthResult(success=False, handled=False, message="535 5.7.8 authentication credentials invalid")


async def main(mode, cert, key):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    def make():
        return SMTP(
            Handler(),
            hostname="localhost",
            tls_context=context if mode == "starttls" else None,
            require_starttls=mode == "starttls",
            authenticator=authenticate if mode != "none" else None,
            auth_required=mode != "none",
            auth_require_tls=mode == "starttls",
        )

    loop = asyncio.get_running_loop()
    server = await loop.create_server(make, "127.0.0.1", 0, ssl=context if mode == "tls" else None)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Ends with the test: when nobody holds the other end of standard input.
    await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(main(*sys.argv[1:]))
