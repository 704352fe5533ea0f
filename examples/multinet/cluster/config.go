package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf/nad"
)

// A Config is the part of the daemon's configuration about Kubernetes. Its fields
// have the keys of [Config.Keys]. Start with [DefaultConfig].
type Config struct {
	Kubeconfig string // empty means in the cluster, or none
	Node       string // empty means that of the environment

	StatusPolicy  kube.StatusPolicy
	StatusTimeout multinet.Duration // how long an ADD waits for its status
	StatusRate    float64           // statuses per second; 0 means the default of kube
	StatusFor     string            // whose status is written: statusForAll or statusForSelected
	Events        string            // eventsBrief, eventsFull or eventsOff

	// Reconcile keeps running pods in step with the networks that they select.
	// OnChange says what becomes of an attachment if only its options change.
	Reconcile bool
	OnChange  string

	NADWait, PodWait, MaxViewAge multinet.Duration

	// StartupTaint is the key of a taint that is removed from the node when the daemon is
	// ready. Empty means none.
	StartupTaint string

	// KubeletDir is the directory of the kubelet, as a path of the node. It has the
	// socket over which the kubelet says which devices a pod has.
	KubeletDir string

	// Root is the root directory of the node.
	Root plugin.Root

	// DRA attaches pods by ResourceClaim. Nil means that it does not. ClaimDir is the
	// directory for what is prepared, as a path of this process.
	DRA      *DRA
	ClaimDir string

	// OutdatedDir is the directory for annotations that detach nothing, as a path of this
	// process, see outdated. Empty means that the next daemon does not know them.
	OutdatedDir string

	// NADDir and Annotations are keys of multinet too. NADDir is the directory of
	// the mirror as a path of this process; empty means no mirror.
	NADDir      string
	Annotations string

	// Dial connects to the API server; nil means TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Set by Discover.
	InCluster bool    // the environment has an API server and a token
	Self      nad.Pod // the daemon's own; zero if it is not known
}

// Values of keys.
const (
	eventsBrief = "brief" // one AddedInterface for each ADD
	eventsFull  = "full"  // one AddedInterface for each interface
	eventsOff   = "off"

	statusForAll      = "all"
	statusForSelected = "selected" // of pods with more networks than the primary

	onChangeIgnore  = "ignore"  // the attachment stays as it is
	onChangeReplace = "replace" // it is made again if the pod names its interface
)

// DefaultConfig returns the defaults of all keys.
func DefaultConfig() Config {
	return Config{
		StatusPolicy: kube.StatusWait, StatusTimeout: multinet.Duration(time.Second), StatusFor: statusForAll, Events: eventsBrief,
		OnChange: onChangeIgnore,
		NADWait:  multinet.Duration(2 * time.Second), PodWait: multinet.Duration(2 * time.Second),
		KubeletDir: "/var/lib/kubelet",
	}
}

// Keys maps the keys of the daemon's file, without those of multinet, to fields.
func (c *Config) Keys() map[string]any {
	return map[string]any{
		"kubeconfig": &c.Kubeconfig, "nodeName": &c.Node,
		"statusPolicy": &c.StatusPolicy, "statusTimeout": &c.StatusTimeout, "statusRate": &c.StatusRate, "statusFor": &c.StatusFor, "events": &c.Events,
		"reconcile": &c.Reconcile, "onChange": &c.OnChange,
		"nadWait": &c.NADWait, "podWait": &c.PodWait, "maxViewAge": &c.MaxViewAge, "kubeletDir": &c.KubeletDir,
		"startupTaint": &c.StartupTaint, "dra": &c.DRA,
	}
}

// Check validates the configuration.
func (c *Config) Check() error {
	if err := cmp.Or(
		program.Absolute("kubeconfig", c.Kubeconfig),
		program.Absolute("kubeletDir", c.KubeletDir),
		program.OneOf("statusPolicy", c.StatusPolicy, kube.StatusWait, kube.StatusAsync, kube.StatusRequire),
		program.OneOf("statusFor", c.StatusFor, statusForAll, statusForSelected),
		program.OneOf("events", c.Events, eventsOff, eventsBrief, eventsFull),
		program.OneOf("onChange", c.OnChange, onChangeIgnore, onChangeReplace),
		program.NotNegative("statusRate", c.StatusRate),
		program.NotNegative("statusTimeout", time.Duration(c.StatusTimeout)),
		program.NotNegative("nadWait", time.Duration(c.NADWait)),
		program.NotNegative("podWait", time.Duration(c.PodWait)),
		program.NotNegative("maxViewAge", time.Duration(c.MaxViewAge)),
	); err != nil {
		return err
	}
	switch errs := validation.IsQualifiedName(c.StartupTaint); {
	case c.KubeletDir == "":
		return errors.New("kubeletDir is empty")
	case c.StatusTimeout == 0:
		return errors.New("statusTimeout is 0")
	case c.StartupTaint != "" && len(errs) > 0:
		return fmt.Errorf("startupTaint %q is not the key of a taint: %s", c.StartupTaint, errs[0])
	case c.DRA != nil:
		return c.DRA.check()
	}
	return nil
}

// TokenFile is where a pod has the token of its service account.
const TokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// Discover completes the configuration from the daemon's environment, which has the
// address of the API server (KUBERNETES_SERVICE_HOST) in a pod, and NODE_NAME,
// POD_NAMESPACE, POD_NAME and POD_UID if its manifest says so. tokenFile is [TokenFile],
// except in tests.
func (c *Config) Discover(variable func(key string) string, tokenFile string) error {
	c.Node = cmp.Or(c.Node, variable("NODE_NAME"))
	if namespace, name := variable("POD_NAMESPACE"), variable("POD_NAME"); namespace != "" && name != "" {
		c.Self = nad.Pod{Namespace: namespace, Name: name, UID: variable("POD_UID")}
	}
	if c.Kubeconfig == "" && variable("KUBERNETES_SERVICE_HOST") != "" {
		switch _, err := os.Stat(tokenFile); {
		case err == nil:
			c.InCluster = true
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	switch {
	case c.On() && c.StartupTaint != "" && c.Node == "":
		return errors.New("startupTaint needs nodeName, or NODE_NAME in the environment")
	case c.Annotations == "api" && !c.On():
		return errors.New(`annotations "api" needs a kubeconfig or, in a pod, the token of a service account`)
	case c.DRA == nil && c.watchPods() && c.On() && c.Node == "":
		return errors.New(`annotations "api" and reconcile need nodeName, or NODE_NAME in the environment: the daemon would watch the pods of all nodes`)
	}
	if c.DRA != nil {
		return c.DRA.discover(c, variable)
	}
	return nil
}

// watchPods reports whether pods are watched from the start.
func (c *Config) watchPods() bool { return c.Annotations == "api" || c.Reconcile || c.DRA != nil }

// On reports whether the daemon uses Kubernetes.
func (c *Config) On() bool { return c.Kubeconfig != "" || c.InCluster }

// Source says in words which API server the daemon uses.
func (c *Config) Source() string {
	switch {
	case c.Kubeconfig != "":
		return c.Kubeconfig
	case c.InCluster:
		return "in cluster"
	}
	return "none"
}

// A DRA is the part of the configuration about ResourceClaims: the key "dra" of the daemon's
// file.
type DRA struct {
	Driver        string      `json:"driver"` // its name in DeviceClasses and claims
	Networks      []dra.Offer `json:"networks"`
	AllowedTypes  []string    `json:"allowedTypes"` // of networks in claims themselves; none means no such networks
	Metadata      bool        `json:"metadata"`     // containers see files about their devices
	CDIDir        string      `json:"cdiDir"`       // of the node; empty means defaultCDIDir
	RollingUpdate bool        `json:"rollingUpdate"`

	podUID string // of the daemon; set by Discover for RollingUpdate
}

const defaultCDIDir = "/var/run/cdi"

// UnmarshalJSON refuses unknown keys: a misspelt "exclusive" would share a network.
func (d *DRA) UnmarshalJSON(text []byte) error {
	type plain DRA
	return program.Decode(text, (*plain)(d))
}

// check validates d.
func (d *DRA) check() error {
	err := errors.New("driver: missing: the name of the driver in DeviceClasses")
	if d.Driver != "" {
		err = cmp.Or(program.Absolute("cdiDir", d.CDIDir), dra.Check(d.Driver, d.Networks))
	}
	if err != nil {
		return fmt.Errorf("dra: %w", err)
	}
	return nil
}

// discover completes d from the environment of the daemon.
func (d *DRA) discover(c *Config, variable func(key string) string) error {
	switch {
	case !c.On():
		return errors.New("dra needs a kubeconfig or, in a pod, the token of a service account")
	case c.Node == "":
		return errors.New("dra needs nodeName, or NODE_NAME in the environment: devices are those of a node")
	}
	if !d.RollingUpdate {
		return nil
	}
	if d.podUID = variable("POD_UID"); d.podUID == "" {
		return errors.New("dra: rollingUpdate needs POD_UID in the environment")
	}
	return nil
}
