package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
)

// inner runs the plugin behind the fake, if there is one, and returns its
// output. If that plugin fails, the fake exits with the same error.
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
