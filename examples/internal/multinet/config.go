package multinet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/internal/inroot"
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

	// readyTimeout is how long ADD waits for the readiness indicator file
	// unless the configuration says otherwise.
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

	root string // in which the paths of the configuration are; may be empty
}

// A wish is a true that nothing depends on: all else is false, and no error.
type wish bool

// UnmarshalJSON never fails.
func (w *wish) UnmarshalJSON(text []byte) error {
	*w = string(text) == "true"
	return nil
}

// readConfig reads the configuration of a node whose root directory is root. Of
// its paths CNIDir is one of this process then.
func readConfig(root string, stdin []byte) (config, error) {
	c, err := program.Decode[config](stdin)
	if err != nil {
		return config{}, err
	}
	c.root = root
	c.CNIVersion = cmp.Or(c.CNIVersion, "0.1.0")                     // SPEC section 1: what no version means
	c.BinDir = program.OnNode(root, cmp.Or(c.BinDir, defaultBinDir)) // where the plugins are run
	if c.CNIDir, err = program.StateDir(c.Name, "cniDir", program.OnNode(root, c.CNIDir), DefaultStateDir); err != nil {
		return c, err
	}
	if c.CNIDir, err = program.InRoot(root, c.CNIDir); err != nil {
		err = program.Invalid(c.Name, "cniDir", err)
	}
	return c, err
}

// StateDir is where the configuration conf, of a node whose root directory is
// root, has the records kept: a path of this process. It fails as an ADD does
// with what it cannot decode of conf, and what it refuses.
func StateDir(root string, conf []byte) (string, error) {
	c, err := readConfig(root, conf)
	if err != nil {
		return "", err
	}
	nc, err := c.networkConfig(conf)
	if err == nil {
		err = nc.refuse()
	}
	return c.CNIDir, err
}

// Keys lists the keys of the configuration that multinet reads.
func Keys() []string {
	var keys []string
	for _, t := range []reflect.Type{reflect.TypeFor[config](), reflect.TypeFor[networkConfig]()} {
		for i := range t.NumField() {
			if key := t.Field(i).Tag.Get("json"); key != "" && key != "-" {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// networkConfig is the part of the configuration that says what to attach, and
// when.
type networkConfig struct {
	ConfDir            string                     `json:"confDir"`
	ClusterNetwork     string                     `json:"clusterNetwork"`
	DefaultNetworks    []string                   `json:"defaultNetworks"`
	Delegates          []netconf.Network          `json:"delegates"`
	ReadinessIndicator string                     `json:"readinessindicatorfile"`
	ReadinessTimeout   *program.Duration          `json:"readinessTimeout"`
	RuntimeConfig      map[string]json.RawMessage `json:"runtimeConfig"`
	Parallel           bool                       `json:"parallel"` // read once more, to be refused

	// What Multus does and multinet does not: see refuse.
	NamespaceIsolation    any `json:"namespaceIsolation"`
	SystemNamespaces      any `json:"systemNamespaces"`
	AuxiliaryCNIChainName any `json:"auxiliaryCNIChainName"`

	config `json:"-"` // the rest
}

func (c config) networkConfig(stdin []byte) (networkConfig, error) {
	nc, err := netconf.Decode[networkConfig](stdin)
	nc.ConfDir = cmp.Or(nc.ConfDir, defaultConfDir)
	nc.config = c
	return nc, err
}

// defaultNetworkAnnotation is the annotation by which a pod replaces its first
// network in Multus.
const defaultNetworkAnnotation = "v1.multus-cni.io/default-network"

// refuse fails where the configuration asks for something that multinet does
// not do, and whose absence nobody would notice: a pod would be attached to
// networks that it must not reach, or not be attached to one. It is for what
// attaches; whoever cleans up does not ask.
func (c *networkConfig) refuse() error {
	var annotations map[string]any
	_ = json.Unmarshal(c.RuntimeConfig[podAnnotations], &annotations) // what is wrong with them is for selections
	inAll := len(c.DefaultNetworks) > 0 || c.ClusterNetwork == "" && len(c.Delegates) > 1
	for _, refused := range []struct {
		key     string
		asked   bool
		instead string
	}{
		{
			"namespaceIsolation", asks(c.NamespaceIsolation),
			"multinet does not know which namespace a network belongs to: set it to false, and keep networks that not every pod may select out of confDir",
		},
		{
			"systemNamespaces", asks(c.SystemNamespaces) && inAll,
			"multinet attaches the pods of every namespace to the defaultNetworks: remove this key, or the defaultNetworks",
		},
		{
			"auxiliaryCNIChainName", asks(c.AuxiliaryCNIChainName),
			"multinet has no auxiliary chain: remove this key, and name the chain in defaultNetworks",
		},
		{
			"runtimeConfig." + podAnnotations + "." + defaultNetworkAnnotation, asks(annotations[defaultNetworkAnnotation]),
			"a pod cannot replace its first network: remove the annotation, and select the network in " + networksAnnotation,
		},
	} {
		if refused.asked {
			return program.Invalid(c.Name, refused.key, errors.New(refused.instead))
		}
	}
	return nil
}

// asks reports whether the value of a key asks for something, whatever its type.
func asks(value any) bool {
	switch v := value.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		return strings.TrimSpace(v) != ""
	case []any:
		return len(v) > 0
	}
	return true
}

// directory is that at path, on a node whose root directory is c.root.
func (c *networkConfig) directory(path string) fs.FS {
	return inroot.Dir{Root: c.root, Path: program.OnNode(c.root, path)}
}

// loadPath reads the network in the file at path, or the first one in the
// directory at path, in the order of runtimes, that is not multinet's own.
func (c *networkConfig) loadPath(path string) (netconf.Network, error) {
	if info, err := fs.Stat(c.directory(path), "."); err == nil && info.IsDir() {
		return netconf.Primary(c.directory(path), func(_ string, n netconf.Network) bool {
			return !slices.ContainsFunc(n.Plugins(), func(p netconf.Plugin) bool { return p.Type() == c.Type })
		})
	}
	return netconf.LoadFileFS(c.directory(filepath.Dir(path)), filepath.Base(path))
}

// ready fails while the readiness indicator file is missing.
func (c *networkConfig) ready() error {
	if c.ReadinessIndicator == "" {
		return nil
	}
	if _, err := fs.Stat(c.directory(filepath.Dir(c.ReadinessIndicator)), filepath.Base(c.ReadinessIndicator)); err != nil {
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

// waitReady waits for the readiness indicator file, for readinessTimeout at
// most.
func (c *networkConfig) waitReady(ctx context.Context) error {
	if c.ready() == nil {
		return nil
	}
	timeout := readyTimeout
	if c.ReadinessTimeout != nil {
		timeout = time.Duration(*c.ReadinessTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
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
