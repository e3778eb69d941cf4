# Networks of your own on an NVIDIA GPU (training, `--device cuda`). Build from the root of the repository:
#   docker build -f docker/cuda.Dockerfile -t ficgan:cuda .
#   docker run --rm --gpus all -v "$PWD/data:/data" --user "$(id -u):$(id -g)" ficgan:cuda train /data/config.yaml --data /data/faces.tar --out /data/run
# torch brings CUDA's libraries. The compiler of the image below builds the native kernels; they are built on first use.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04
# The release of Ubuntu settles the versions.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/ficgan \
 && python3 tools/lock.py train serve setuptools > /tmp/wanted.txt \
 && /opt/ficgan/bin/pip install --no-cache-dir --require-hashes --requirement /tmp/wanted.txt \
 && /opt/ficgan/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && rm -rf /src /tmp/wanted.txt \
 && useradd --create-home --uid 1001 ficgan
ENV PATH=/opt/ficgan/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
USER 1001:1001
WORKDIR /tmp
EXPOSE 8750
ENTRYPOINT ["ficgan"]
CMD ["--help"]
