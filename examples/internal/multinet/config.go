package multinet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/netconf"
)

// DefaultStateDir is where multinet keeps its records unless the configuration
// says otherwise.
const DefaultStateDir = "/var/lib/cni/multinet"

const (
	defaultConfDir = "/etc/cni/multinet/net.d"
	defaultBinDir  = "/opt/cni/bin"

	// atOnce is how many networks "parallel" attaches or detaches at once. It
	// is more than there may be processors: plugins wait in the kernel about
	// half of their time, see "What parallel gains" in internal/e2e. It is not
	// more, as each takes two processes and their memory, of each container
	// that comes at the same time.
	atOnce = 8

	// readyTimeout is how long ADD waits for the readiness indicator file.
	readyTimeout = 5 * time.Second
)

// config is what every command needs of multinet's configuration. What only
// attaching needs is apart, see networkConfig: a DEL must not fail because that
// has been broken since.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	CNIDir     string `json:"cniDir"`
	BinDir     string `json:"binDir"`
	Parallel   wish   `json:"parallel"`
}

// A wish is a true that nothing depends on: all else is false, and no error.
type wish bool

// UnmarshalJSON never fails.
func (w *wish) UnmarshalJSON(text []byte) error {
	*w = string(text) == "true"
	return nil
}

func readConfig(stdin []byte) (config, error) {
	c, err := program.Decode[config](stdin)
	if err != nil {
		return config{}, err
	}
	c.CNIVersion = cmp.Or(c.CNIVersion, "0.1.0") // SPEC section 1: what no version means
	c.BinDir = cmp.Or(c.BinDir, defaultBinDir)
	c.CNIDir, err = program.StateDir(c.Name, "cniDir", c.CNIDir, DefaultStateDir)
	return c, err
}

// StateDir is where the configuration conf has the records kept. It fails as
// the commands do with what they cannot decode of conf.
func StateDir(conf []byte) (string, error) {
	c, err := readConfig(conf)
	if err == nil {
		_, err = c.networkConfig(conf)
	}
	return c.CNIDir, err
}

// networkConfig is the part of the configuration that says what to attach, and
// when.
type networkConfig struct {
	ConfDir            string                     `json:"confDir"`
	ClusterNetwork     string                     `json:"clusterNetwork"`
	DefaultNetworks    []string                   `json:"defaultNetworks"`
	Delegates          []netconf.Network          `json:"delegates"`
	ReadinessIndicator string                     `json:"readinessindicatorfile"`
	RuntimeConfig      map[string]json.RawMessage `json:"runtimeConfig"`
	Parallel           bool                       `json:"parallel"` // read once more, to be refused

	config `json:"-"` // the rest
}

func (c config) networkConfig(stdin []byte) (networkConfig, error) {
	nc, err := netconf.Decode[networkConfig](stdin)
	nc.ConfDir = cmp.Or(nc.ConfDir, defaultConfDir)
	nc.config = c
	return nc, err
}

// ready fails while the readiness indicator file is missing.
func (c *networkConfig) ready() error {
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
func (c *networkConfig) waitReady(ctx context.Context) error {
	if c.ready() == nil {
		return nil
	}
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
