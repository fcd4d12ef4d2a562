# A worker image for clusters: docker build -t camp-toolkit . && docker run camp-toolkit camp-data --help
FROM python:3.12-slim

RUN useradd --create-home camp
WORKDIR /opt/camp-toolkit
COPY . .
RUN pip install --no-cache-dir '.[ray,slurm,s3,lmdb]'

USER camp
WORKDIR /home/camp
CMD ["camp-data", "--help"]
