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

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// DefaultStateDir is the default of cniDir, the directory of the records.
const DefaultStateDir = "/var/lib/cni/multinet"

const (
	defaultConfDir = "/etc/cni/multinet/net.d"
	defaultBinDir  = "/opt/cni/bin"

	// atOnce is how many networks "parallel" attaches or detaches at once. More
	// than the processors is useful, because plugins wait in the kernel for
	// about half of their time; see 'What "parallel" gains' in internal/e2e. But
	// each takes the memory of two processes, for each container.
	atOnce = 8

	// readyTimeout is the default of readinessTimeout.
	readyTimeout = 5 * time.Second
)

// A lenientBool is a boolean; any value except true is false.
type lenientBool bool

// UnmarshalJSON does not fail.
func (b *lenientBool) UnmarshalJSON(text []byte) error {
	*b = string(text) == "true"
	return nil
}

// Keys returns the keys of the configuration that multinet reads.
func Keys() []string {
	keys := []string{"cniVersion", "name", "type", "cniDir", "binDir"}
	for i := range reflect.TypeFor[config]().NumField() {
		if key := reflect.TypeFor[config]().Field(i).Tag.Get("json"); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// config is the part of the configuration that says what to attach, and when. DEL
// does not read it, and so works if it has been broken after the ADD.
type config struct {
	ConfDir            string                     `json:"confDir"`
	ClusterNetwork     string                     `json:"clusterNetwork"`
	DefaultNetworks    []string                   `json:"defaultNetworks"`
	Delegates          []netconf.Network          `json:"delegates"`
	ReadinessIndicator string                     `json:"readinessindicatorfile"`
	ReadinessTimeout   *Duration                  `json:"readinessTimeout"`
	RuntimeConfig      map[string]json.RawMessage `json:"runtimeConfig"`
	Parallel           bool                       `json:"parallel"` // to report mistakes: prepare accepts them

	// Features of Multus that multinet does not have; see refuse.
	NamespaceIsolation    any `json:"namespaceIsolation"`
	SystemNamespaces      any `json:"systemNamespaces"`
	AuxiliaryCNIChainName any `json:"auxiliaryCNIChainName"`

	call *plugin.Call // with this configuration
}

// A Duration is a string such as "25s" in a configuration.
type Duration time.Duration

// UnmarshalText accepts what [time.ParseDuration] does.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

func readConfig(c *plugin.Call) (*config, error) {
	conf, err := plugin.Config[config](c)
	conf.ConfDir, conf.call = cmp.Or(conf.ConfDir, defaultConfDir), c
	return &conf, err
}

// defaultNetworkAnnotation is the annotation with which a pod replaces its first
// network in Multus.
const defaultNetworkAnnotation = "v1.multus-cni.io/default-network"

// refuse fails if the configuration uses a feature of Multus that multinet does not
// have, and ignoring it would go unnoticed: a pod would be attached to networks that
// it must not reach, or would lack one. CHECK, DEL and GC do not call it.
func (c *config) refuse() error {
	var annotations map[string]any
	_ = json.Unmarshal(c.RuntimeConfig[podAnnotations], &annotations) // selections reports mistakes
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
			return c.call.Invalid(refused.key, errors.New(refused.instead))
		}
	}
	return nil
}

// asks reports whether the value of a key turns something on, whatever its type.
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

// loadPath reads the network in the file at path. If path is a directory, it reads
// the first network in it, in the order of runtimes, that is not multinet's own.
func (c *config) loadPath(path string) (netconf.Network, error) {
	dir := c.call.Root.Dir(path)
	if info, err := fs.Stat(dir, "."); err == nil && info.IsDir() {
		var errs []error
		for f, err := range netconf.Files(dir, nil) {
			switch {
			case err != nil:
				errs = append(errs, err)
			case !slices.ContainsFunc(f.Network.Plugins(), func(p netconf.Plugin) bool { return p.Type() == c.call.Type }):
				return f.Network, nil
			}
		}
		return netconf.Network{}, &netconf.Error{Kind: netconf.ErrNotFound, File: path, Err: errors.Join(errs...)}
	}
	return netconf.LoadFileFS(c.call.Root.Dir(filepath.Dir(path)), filepath.Base(path))
}

// ready fails if the readiness indicator file is missing.
func (c *config) ready() error {
	if c.ReadinessIndicator == "" {
		return nil
	}
	if _, err := fs.Stat(c.call.Root.Dir(filepath.Dir(c.ReadinessIndicator)), filepath.Base(c.ReadinessIndicator)); err != nil {
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("network %q is not ready: %s", c.call.Name, why(err)), c.ReadinessIndicator)
	}
	return nil
}

func why(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "readinessindicatorfile is missing"
	}
	return err.Error()
}

// waitReady waits for the readiness indicator file, at most for readinessTimeout.
func (c *config) waitReady(ctx context.Context) error {
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
