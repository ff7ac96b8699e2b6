# syntax=docker/dockerfile:1
FROM python:3.11-slim AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/onceproxy
COPY requirements/runtime.txt requirements/build.txt requirements/
# The build backend stays in this stage: a wheel is made here and installed without it.
RUN /opt/onceproxy/bin/pip install --require-hashes -r requirements/runtime.txt \
 && python -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
COPY rules rules
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /tmp/wheel . \
 && /opt/onceproxy/bin/pip install --no-deps /tmp/wheel/*.whl \
 && /opt/onceproxy/bin/pip uninstall --yes pip

FROM python:3.11-slim
LABEL org.opencontainers.image.title="onceproxy" \
      org.opencontainers.image.description="A forward proxy that makes an agent's external writes happen once" \
      org.opencontainers.image.licenses="MIT"
RUN useradd --system --uid 10001 --home-dir /var/lib/onceproxy --create-home onceproxy \
 && chmod 0700 /var/lib/onceproxy
COPY --from=build /opt/onceproxy /opt/onceproxy
ENV PATH=/opt/onceproxy/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ONCEPROXY_STATE_DIR=/var/lib/onceproxy \
    ONCEPROXY_LISTEN=0.0.0.0:8901 \
    ONCEPROXY_PROBE=0.0.0.0:8903
USER 10001
# The ledger must outlive the container: without a volume a restart remembers nothing.
VOLUME /var/lib/onceproxy
EXPOSE 8901 8903
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
  CMD ["python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:8903/healthz', timeout=2)"]
ENTRYPOINT ["onceproxy"]
CMD ["serve"]
