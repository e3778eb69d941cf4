# Photos and films on a CPU, without torch. Build from the root of the repository:
#   docker build -f docker/cpu.Dockerfile -t ficgan .
#   docker run --rm --network none -v "$PWD/photos:/in:ro" -v "$PWD/out:/out" --user "$(id -u):$(id -g)" ficgan deid /in -o /out
#   docker run --rm -p 127.0.0.1:8750:8750 -e FICGAN_TOKEN \
#     --health-cmd 'python -c "import urllib.request as r; r.urlopen(\"http://127.0.0.1:8750/health\")"' ficgan serve --host 0.0.0.0
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/ficgan \
 && python tools/lock.py serve setuptools > /tmp/wanted.txt \
 && /opt/ficgan/bin/pip install --no-cache-dir --require-hashes --requirement /tmp/wanted.txt \
 && /opt/ficgan/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm
COPY --from=build /opt/ficgan /opt/ficgan
RUN useradd --create-home --uid 1000 ficgan
ENV PATH=/opt/ficgan/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
USER 1000:1000
WORKDIR /tmp
EXPOSE 8750
ENTRYPOINT ["ficgan"]
CMD ["--help"]
