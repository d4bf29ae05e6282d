llamafactory-cli train code/one.yaml
llamafactory-cli train code/two.yaml
