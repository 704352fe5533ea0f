package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/metacni/metacni/delegate/kube/dra"
)

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
	object := json.NewDecoder(bytes.NewReader(text))
	object.DisallowUnknownFields()
	return object.Decode((*plain)(d))
}

// check validates d.
func (d *DRA) check() error {
	if d.Driver == "" {
		return errors.New("driver: missing: the name of the driver in DeviceClasses")
	}
	if d.CDIDir != "" && !filepath.IsAbs(d.CDIDir) {
		return fmt.Errorf("cdiDir %q is not an absolute path", d.CDIDir)
	}
	return dra.Check(d.Driver, d.Networks)
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
