#!/bin/sh
# Call a server with curl: smelt serve smelt/assets/digits.onnx, then sh examples/serve/with_curl.sh [URL]
set -eu
url=${1:-http://127.0.0.1:8000}

curl --fail --silent --show-error "$url/v2/models/digits"
echo
pixels=$(seq 1 64 | sed 's/.*/0.5/' | paste -sd, -)
curl --fail --silent --show-error "$url/v2/models/digits/infer" \
    -d "{\"inputs\": [{\"name\": \"pixels\", \"shape\": [1, 64], \"datatype\": \"FP32\", \"data\": [$pixels]}]}"
echo
