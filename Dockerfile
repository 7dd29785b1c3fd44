# The service as a container image: one interpreter, one virtual environment, nothing that must be writable.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --tag registry.example.com/multiarch-extender:0.1.0 --push .
#
# Build it for every architecture your nodes have. Only wheels are installed, so no platform needs a compiler.

# Any image with a shell, Python 3.11 or later with its venv module and pip, and CA certificates; name yours by digest
# for a build that can be repeated.
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim

FROM ${PYTHON_IMAGE} AS build
RUN python3 -m venv --without-pip /opt/multiarch-extender
COPY requirements.txt /src/
RUN python3 -m pip --python /opt/multiarch-extender/bin/python3 install --no-cache-dir --no-compile \
        --only-binary :all: --require-hashes --requirement /src/requirements.txt
COPY extender /src/extender
COPY LICENSE /opt/multiarch-extender/
# The entry point is written here because there is nothing else to build: a build backend would have to be fetched.
# Bytecode is trusted without looking at the sources' times, which do not survive every way of copying layers.
RUN cd /opt/multiarch-extender \
    && cp -R /src/extender "$(bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    && printf '#!%s\nfrom extender.cli.main import main\n\nmain()\n' "$PWD/bin/python3" > bin/multiarch-extender \
    && ln -s multiarch-extender bin/kubectl-multiarch \
    && chmod 755 bin/multiarch-extender \
    && bin/python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash lib

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="multiarch-extender" \
      org.opencontainers.image.description="Keeps Kubernetes pods on nodes whose CPU platform their images were built for" \
      org.opencontainers.image.url="https://github.com/multiarch-extender/multiarch-extender" \
      org.opencontainers.image.source="https://github.com/multiarch-extender/multiarch-extender" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/multiarch-extender /opt/multiarch-extender
ENV PATH=/opt/multiarch-extender/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# By number, so that the kubelet can see that it is not root; no account of that number is needed.
USER 65532:65532
# 8880 (scheduler verbs) is on loopback only.
EXPOSE 8443 8881
ENTRYPOINT ["multiarch-extender"]
CMD ["serve"]
