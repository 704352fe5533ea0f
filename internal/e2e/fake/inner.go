package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
)

// inner runs the plugin that the fake stands in front of, if there is one, and
// returns what it prints. When it fails, the fake ends with the same error.
func inner(conf config, stdin json.RawMessage) ([]byte, error) {
	if conf.Inner == "" {
		return nil, nil
	}
	c := exec.CommandContext(context.Background(), conf.Inner)
	c.Stdin, c.Stderr = bytes.NewReader(stdin), os.Stderr
	out, err := c.Output()
	if err != nil && len(out) > 0 {
		_, _ = os.Stdout.Write(out)
		os.Exit(1)
	}
	return out, err
}
