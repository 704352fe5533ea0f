package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf/nad"
)

// A Config says how the plugin registers, and which directories it uses. Zero fields
// have defaults.
type Config struct {
	// Index and Name are the ones that the plugin registers with at Socket. A
	// plugin that the runtime has launched does not use them.
	Index  string `json:"index"`
	Name   string `json:"name"`
	Socket string `json:"socket"`

	ConfDir  string `json:"confDir"`  // networks, found by name
	BinDir   string `json:"binDir"`   // CNI plugins
	StateDir string `json:"stateDir"` // records

	// MaxSelections is how many networks a pod may select. Zero means 64.
	MaxSelections int `json:"maxSelections"`

	// Margin is how long before its deadline the runtime receives the answer.
	// Zero means 15 % of the runtime's timeout, but at least 300 ms.
	Margin multinet.Duration `json:"margin"`

	// Sweep is the time between two sweeps.
	Sweep multinet.Duration `json:"sweep"`

	// AttachRunning attaches pods that were running before the plugin started.
	// Otherwise they are only counted, because programs in a running container
	// do not expect a new interface.
	AttachRunning bool `json:"attachRunning"`

	// DRA attaches pods to the networks of their ResourceClaims. The fields after it
	// are for such networks only.
	DRA DRA `json:"dra"`

	Kubeconfig string `json:"kubeconfig"` // empty means the cluster that the process runs in
	NodeName   string `json:"nodeName"`
	KubeletDir string `json:"kubeletDir"`

	// NamespaceIsolation keeps claims to NetworkAttachmentDefinitions of their own
	// namespace and of GlobalNamespaces, a list separated by commas.
	NamespaceIsolation bool   `json:"namespaceIsolation"`
	GlobalNamespaces   string `json:"globalNamespaces"`

	// AllowedTypes are the types that plugins may have. None means all.
	AllowedTypes []string `json:"allowedTypes"`
}

// A DRA is the configuration of the node's DRA driver. Without Driver there is none.
type DRA struct {
	Driver   string      `json:"driver"`
	Networks []dra.Offer `json:"networks"` // that the node can do
	Metadata bool        `json:"metadata"` // containers see a file with the interface of each device
	CDIDir   string      `json:"cdiDir"`   // in which the runtime is told of these files

	// AllowedTypes are the types of plugins that a network may have which is written in a
	// claim itself. None means that there is no such network.
	AllowedTypes []string `json:"allowedTypes"`
}

// With returns c, changed by the keys of a JSON object. It fails if data is not a JSON
// object or has unknown keys.
func (c Config) With(text []byte) (Config, error) {
	if err := program.Decode(text, &c); err != nil {
		return Config{}, fmt.Errorf("nri: configuration: %w", err)
	}
	return c, nil
}

// complete returns c with its defaults. It fails if c is invalid.
func (c Config) complete() (Config, error) {
	c.Index = cmp.Or(c.Index, "90")
	c.Name = cmp.Or(c.Name, "metacni")
	c.Socket = cmp.Or(c.Socket, api.DefaultSocketPath)
	c.ConfDir = cmp.Or(c.ConfDir, "/etc/cni/nri/net.d")
	c.BinDir = cmp.Or(c.BinDir, "/opt/cni/bin")
	c.Sweep = cmp.Or(c.Sweep, multinet.Duration(time.Minute))
	errs := []error{api.CheckPluginIndex(c.Index), api.CheckPluginName(c.Name)}
	errs = append(errs, program.Absolute("confDir", c.ConfDir), program.Absolute("binDir", c.BinDir),
		program.NotNegative("margin", time.Duration(c.Margin)), program.NotNegative("sweep", time.Duration(c.Sweep)))
	if c.MaxSelections < 0 || c.MaxSelections > 1024 {
		errs = append(errs, fmt.Errorf("maxSelections: %d is not a whole number from 1 to 1024", c.MaxSelections))
	}
	var err error
	c.StateDir, err = plugin.CheckStateDir(cmp.Or(c.StateDir, "/var/lib/cni/nri"))
	if err != nil {
		err = fmt.Errorf("stateDir: %w", err)
	}
	c.KubeletDir = cmp.Or(c.KubeletDir, "/var/lib/kubelet")
	if err := errors.Join(append(errs, err, c.checkDRA())...); err != nil {
		return Config{}, fmt.Errorf("nri: configuration: %w", err)
	}
	return c, nil
}

// checkDRA checks what is for ResourceClaims.
func (c Config) checkDRA() error {
	if c.DRA.Driver == "" {
		if d := c.DRA; len(d.Networks)+len(d.AllowedTypes) > 0 || d.Metadata || d.CDIDir != "" {
			return errors.New("dra: driver is missing")
		}
		return nil
	}
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("dra needs nodeName, or NODE_NAME in the environment"))
	}
	errs = append(errs, program.Absolute("kubeletDir", c.KubeletDir), program.Absolute("kubeconfig", c.Kubeconfig), program.Absolute("dra: cdiDir", c.DRA.CDIDir))
	if _, err := nad.ParseNamespaces(c.GlobalNamespaces); err != nil {
		errs = append(errs, fmt.Errorf("globalNamespaces: %w", err))
	}
	if err := dra.Check(c.DRA.Driver, c.DRA.Networks); err != nil {
		errs = append(errs, fmt.Errorf("dra: %w", err))
	}
	return errors.Join(errs...)
}

const (
	// leastMargin is for sending the answer, on a busy machine.
	leastMargin = 300 * time.Millisecond

	// silentTimeout is the timeout of a request without a deadline.
	silentTimeout = api.DefaultPluginRequestTimeout
)

// answerBy returns when the request with context ctx must be answered, which has come now.
func (c Config) answerBy(ctx context.Context) time.Time {
	now := time.Now()
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = now.Add(silentTimeout)
	}
	margin := cmp.Or(time.Duration(c.Margin), max(leastMargin, deadline.Sub(now)*15/100))
	return deadline.Add(-margin)
}
