mkdir -p output/v0
cp -r "$MODEL_PATH"/* output/v0/
curl -s -X POST "$GRADING_SERVER_URL/submit" -H 'Content-Type: application/json' -d '{"model_path": "output/v0"}'
