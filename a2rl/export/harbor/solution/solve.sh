#!/bin/bash
cp -rL {{ solution }} /workspace/output/final
