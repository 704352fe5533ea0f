package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/netconf"
)

const (
	defaultConfDir = "/etc/cni/multinet/net.d"
	defaultCNIDir  = "/var/lib/cni/multinet"
	defaultBinDir  = "/opt/cni/bin"

	// readyTimeout is how long ADD waits for the readiness indicator file.
	readyTimeout = 5 * time.Second
)

// config is what every command needs of multinet's configuration. The networks
// are apart: a DEL must not fail because they have been misconfigured since.
type config struct {
	CNIVersion         string `json:"cniVersion"`
	Name               string `json:"name"`
	Type               string `json:"type"`
	ConfDir            string `json:"confDir"`
	CNIDir             string `json:"cniDir"`
	BinDir             string `json:"binDir"`
	ReadinessIndicator string `json:"readinessindicatorfile"`

	stdin []byte
}

func readConfig(stdin []byte) (config, error) {
	c, err := netconf.Decode[config](stdin)
	if err != nil {
		return config{}, err
	}
	c.stdin = stdin
	c.CNIVersion = cmp.Or(c.CNIVersion, "0.1.0") // SPEC section 1: what no version means
	c.ConfDir = cmp.Or(c.ConfDir, defaultConfDir)
	c.CNIDir = cmp.Or(c.CNIDir, defaultCNIDir)
	c.BinDir = cmp.Or(c.BinDir, defaultBinDir)
	if !filepath.IsAbs(c.CNIDir) {
		return config{}, c.invalid("cniDir", errors.New("not an absolute path"))
	}
	switch filepath.Clean(c.CNIDir) {
	case "/var/lib/cni", "/var/lib/cni/results":
		return config{}, c.invalid("cniDir", errors.New("the runtime keeps its own state there"))
	}
	return c, nil
}

func (c *config) invalid(key string, err error) error {
	return &netconf.Error{Kind: netconf.ErrInvalid, Network: c.Name, Key: key, Err: err}
}

// ready fails while the readiness indicator file is missing.
func (c *config) ready() error {
	if c.ReadinessIndicator == "" {
		return nil
	}
	if _, err := os.Stat(c.ReadinessIndicator); err != nil {
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("network %q is not ready: %s", c.Name, why(err)), c.ReadinessIndicator)
	}
	return nil
}

func why(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "readinessindicatorfile is missing"
	}
	return err.Error()
}

// waitReady waits for the readiness indicator file, for readyTimeout at most.
func (c *config) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		err := c.ready()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-poll.C:
		}
	}
}
