package plugin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// DefaultStateDir is the default of cniDir, the directory of the records.
const DefaultStateDir = "/var/lib/cni/multinet"

// DefaultConfDir is the default of confDir, the directory of networks.
const DefaultConfDir = "/etc/cni/multinet/net.d"

// DefaultCacheDir is the default of cniCacheDir: where libcni keeps its cache for container
// runtimes.
const DefaultCacheDir = "/var/lib/cni"

// What multinetd and multinet-shim have in common. The socket has the names of Multus, whose
// shim can talk to multinetd.
const (
	DefaultSocketDir = "/run/multus"
	SocketName       = "multus.sock" // in the directory of the socket
	DefaultQueueDir  = "/var/lib/cni/multinet.queue"
)

// DefaultMultusDir is where Multus keeps its state: the default of its cniDir.
const DefaultMultusDir = "/var/lib/cni/multus"

// DefaultBinDir is the default of binDir.
const DefaultBinDir = "/opt/cni/bin"

const (
	// atOnce is how many networks "parallel" attaches or detaches at once. More
	// than the processors is useful, because plugins wait in the kernel for
	// about half of their time; see 'What "parallel" gains' in internal/e2e. But
	// each takes the memory of two processes, for each container.
	atOnce = 8

	// mostSelections is the largest value of maxSelections. Up to here the cost of an
	// ADD is known to be linear.
	mostSelections = 1024

	// DefaultSlowAfter is the default of slowAfter: how long an ADD may take without being
	// logged.
	DefaultSlowAfter = Duration(2 * time.Second)

	// readyTimeout is the default of readinessTimeout.
	readyTimeout = 5 * time.Second
)

// config is the part of the configuration that says what to attach, and when. DEL
// does not read it, and so works if it has been broken after the ADD.
type config struct {
	// The networks of every container.
	ConfDir               string            `json:"confDir"`
	ClusterNetwork        string            `json:"clusterNetwork"`
	DefaultNetworks       []string          `json:"defaultNetworks"`
	Delegates             []json.RawMessage `json:"delegates"` // without a clusterNetwork, networks
	AuxiliaryCNIChainName string            `json:"auxiliaryCNIChainName"`

	// The networks that pods select.
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
	Annotations   string                     `json:"annotations"` // fromEither, which "" means too, fromRuntime or fromCluster
	MaxSelections *int                       `json:"maxSelections"`
	NADDir        string                     `json:"nadDir"`
	LegacyArgs    *bool                      `json:"legacyArgs"`
	DeviceInfoDir string                     `json:"deviceInfoDir"`

	// To report mistakes: DEL accepts them.
	CNICacheDir    string `json:"cniCacheDir"`
	RuntimeConfDir string `json:"runtimeConfDir"`

	SharedNetworks json.RawMessage `json:"sharedNetworks"` // to report mistakes: GC reads it

	// Who may have which network.
	MultusNamespace    string       `json:"multusNamespace"`
	NetworkNamespace   string       `json:"networkNamespace"` // an alias of it
	SystemNamespaces   []string     `json:"systemNamespaces"`
	NamespaceIsolation bool         `json:"namespaceIsolation"`
	GlobalNamespaces   string       `json:"globalNamespaces"`
	PodDefaultNetwork  *bool        `json:"podDefaultNetwork"`
	AllowedTypes       allowedTypes `json:"allowedTypes"`
	AllowDeviceID      bool         `json:"allowDeviceID"`

	// When, and how.
	ReadinessIndicator string    `json:"readinessindicatorfile"`
	ReadinessTimeout   *Duration `json:"readinessTimeout"`

	SlowAfter *Duration `json:"slowAfter"`

	DelegatePrivileges privileges `json:"delegatePrivileges"` // to report mistakes: prepare reads it

	call    *plugin.Call // with this configuration
	confDir *netconf.Dir // of the files in ConfDir
	cluster Cluster
	pod     nad.Pod // of the container, if it has one
	policy  nad.Policy
	most    int // networks that a pod may select; 0 means the default of netconf
}

// readConfig reads the configuration of c. It fails as an ADD does if a key is not
// valid, but looks up no network.
func readConfig(c *plugin.Call, cluster Cluster) (*config, error) {
	conf, err := plugin.Config[config](c)
	if err != nil {
		return nil, err
	}
	conf.call, conf.cluster, conf.pod = c, cluster, nad.PodOf(c.Args)
	conf.pod.Container = cmp.Or(conf.pod.Container, c.ContainerID)
	for _, path := range []struct {
		key, value string
		absolute   bool // it must be
	}{
		{"nadDir", conf.NADDir, true},
		{"cniCacheDir", conf.CNICacheDir, true},
		{"runtimeConfDir", conf.RuntimeConfDir, true},
		{"confDir", conf.ConfDir, false},
		{"deviceInfoDir", conf.DeviceInfoDir, false},
		{"readinessindicatorfile", conf.ReadinessIndicator, false},
		{"clusterNetwork", conf.ClusterNetwork, false},
	} {
		_, err := c.System.Root.Node(path.value)
		if path.absolute && path.value != "" && !filepath.IsAbs(path.value) {
			err = fmt.Errorf("%q is not an absolute path", path.value)
		}
		if err != nil {
			return nil, c.Invalid(path.key, err)
		}
	}
	conf.ConfDir = cmp.Or(conf.ConfDir, DefaultConfDir)
	conf.confDir = &netconf.Dir{FS: c.System.Root.Dir(conf.ConfDir)}
	conf.NADDir = cmp.Or(conf.NADDir, conf.ConfDir)
	if !slices.Contains([]string{"", fromEither, fromRuntime, fromCluster}, conf.Annotations) {
		return nil, c.Invalid("annotations", fmt.Errorf("%q is none of %s, %s and %s", conf.Annotations, fromEither, fromRuntime, fromCluster))
	}
	if _, err := sharedNetworks(c); err != nil && c.Command != delegate.CommandGC {
		return nil, err // in a GC all networks are shared then
	}
	if n := conf.MaxSelections; n != nil {
		if conf.most = *n; *n < 1 || *n > mostSelections {
			return nil, c.Invalid("maxSelections", fmt.Errorf("not a whole number from 1 to %d", mostSelections))
		}
	}
	if err := conf.DelegatePrivileges.check(); err != nil {
		return nil, c.Invalid("delegatePrivileges", err)
	}
	if conf.LegacyArgs == nil {
		conf.LegacyArgs = new(legacyArgs(c))
	}
	if conf.policy, err = conf.readPolicy(); err != nil {
		return nil, err
	}
	return &conf, nil
}

// legacyArgs is the default of the key: true in the place of Multus.
func legacyArgs(c *plugin.Call) bool { return c.Type == "multus" || c.Type == "multus-shim" }

// readPolicy returns what the keys about namespaces say.
func (c *config) readPolicy() (nad.Policy, error) {
	policy := nad.Policy{
		Namespace: cmp.Or(c.MultusNamespace, c.NetworkNamespace), SystemNamespaces: c.SystemNamespaces,
		Isolation: c.NamespaceIsolation, NoPodDefault: c.PodDefaultNetwork != nil && !*c.PodDefaultNetwork,
	}
	if c.MultusNamespace != "" && c.NetworkNamespace != "" && c.MultusNamespace != c.NetworkNamespace {
		return policy, c.call.Invalid("networkNamespace", errors.New("another name of the key multusNamespace, with another value"))
	}
	for i, namespace := range slices.Concat([]string{c.MultusNamespace, c.NetworkNamespace}, c.SystemNamespaces) {
		if namespace == "" || (nad.Ref{Namespace: namespace, Name: "x"}).Validate() == nil {
			continue
		}
		keys := []string{"multusNamespace", "networkNamespace", fmt.Sprintf("systemNamespaces[%d]", i-2)}
		return policy, c.call.Invalid(keys[min(i, 2)], fmt.Errorf("%q is not a DNS label", namespace))
	}
	var err error
	policy.GlobalNamespaces, err = nad.ParseNamespaces(c.GlobalNamespaces)
	if wrong := (*netconf.Error)(nil); errors.As(err, &wrong) {
		return policy, c.call.Invalid("globalNamespaces", wrong.Err)
	}
	return policy, nil
}

// Keys returns the keys of the configuration that multinet reads.
func Keys() []string {
	keys := []string{"cniVersion", "name", "type", "cniDir", "binDir", "parallel"}
	for field := range reflect.TypeFor[config]().Fields() {
		if key := field.Tag.Get("json"); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// Where the annotations of pods come from.
const (
	fromEither  = "auto" // the runtime, if it passes them, or else the cluster
	fromRuntime = "runtime"
	fromCluster = "api"
)

// allowedTypes are the types that plugins may have: those of the networks in the
// configuration, and those of the networks that pods select. None means all.
type allowedTypes struct {
	Standing []string `json:"standing"`
	NAD      []string `json:"nad"`
}

// UnmarshalJSON reads an object, or a list that is for all networks. It refuses other
// keys, whose lists would restrict nothing.
func (a *allowedTypes) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '[' {
		err := json.Unmarshal(text, &a.Standing)
		a.NAD = a.Standing
		return err
	}
	type plain allowedTypes
	return program.Decode(text, (*plain)(a))
}

// A Duration is a string such as "25s" in a configuration.
type Duration time.Duration

// UnmarshalText accepts what [time.ParseDuration] does.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}
