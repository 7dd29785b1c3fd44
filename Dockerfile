# The service as a container image: one interpreter, one virtual environment, no shell, nothing that must be writable.
#
#   docker buildx build --platform linux/amd64,linux/arm64 --tag registry.example.com/multiarch-extender:0.1.0 --push .
#
# Build it for every architecture your nodes have. Only wheels are installed, so no platform needs a compiler.
# The same base, checkout and SOURCE_DATE_EPOCH give the same root file system, byte by byte.

# Any image of Debian, or of a distribution like it, with Python 3.11 or later, its venv module, pip and CA certificates.
# The digest is that of an index for amd64, arm64 and others. It is written out, so that Dependabot follows it.
FROM docker.io/library/python:3.13-slim@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6 AS build
RUN python3 -m venv --without-pip /opt/multiarch-extender
COPY requirements.txt /src/
RUN python3 -m pip --python /opt/multiarch-extender/bin/python3 install --no-cache-dir --no-compile \
        --only-binary :all: --require-hashes --requirement /src/requirements.txt
COPY LICENSE /opt/multiarch-extender/
COPY extender /src/extender
COPY deploy/image/make_root.py /src/
# The entry point is written here because there is nothing else to build: a build backend would have to be fetched.
RUN cd /opt/multiarch-extender \
    && cp -R /src/extender "$(bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    && printf '#!%s\nfrom extender.cli.main import main\n\nmain()\n' "$PWD/bin/python3" > bin/multiarch-extender \
    && ln -s multiarch-extender bin/kubectl-multiarch \
    && chmod 755 bin/multiarch-extender
# Seconds since 1970; every file of the image has this time.
ARG SOURCE_DATE_EPOCH=0
RUN SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PYTHONHASHSEED=0 python3 /src/make_root.py /root-of-image /opt/multiarch-extender

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="multiarch-extender" \
      org.opencontainers.image.description="Keeps Kubernetes pods on nodes whose CPU platform their images were built for" \
      org.opencontainers.image.url="https://github.com/multiarch-extender/multiarch-extender" \
      org.opencontainers.image.source="https://github.com/multiarch-extender/multiarch-extender" \
      org.opencontainers.image.documentation="https://github.com/multiarch-extender/multiarch-extender/blob/main/docs/index.md" \
      org.opencontainers.image.vendor="multiarch-extender" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /root-of-image /
# Blocks from 256 KiB on are mapped, always (mallopt(3)): the buffers of a TLS connection are of that size and mostly
# unused, and on the heap each would keep pages that others have used before. Smaller ones, which bodies of 5,000 node
# names are, stay on the heap, where their pages are used again. 500 slow bodies take 214 MB so, and 434 MB without.
ENV PATH=/opt/multiarch-extender/bin \
    LANG=C.UTF-8 \
    MALLOC_MMAP_THRESHOLD_=262144 \
    MALLOC_TRIM_THRESHOLD_=1048576
# By number, so that the kubelet can see that it is not root; no account of that number is needed.
USER 65532:65532
# 8880 (scheduler verbs) is on loopback only.
EXPOSE 8443 8881
ENTRYPOINT ["multiarch-extender"]
CMD ["serve"]
