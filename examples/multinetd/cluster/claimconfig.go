package cluster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/netconf/nad"
)

// A DRA is the part of the configuration about ResourceClaims: the key "dra" of the daemon's
// file.
type DRA struct {
	Driver        string    `json:"driver"` // its name in DeviceClasses and claims
	Networks      []Offered `json:"networks"`
	AllowedTypes  []string  `json:"allowedTypes"` // of networks in claims themselves; none means no such networks
	Metadata      bool      `json:"metadata"`     // containers see files about their devices
	CDIDir        string    `json:"cdiDir"`       // of the node; empty means defaultCDIDir
	RollingUpdate bool      `json:"rollingUpdate"`

	podUID string // of the daemon; set by Discover for RollingUpdate
}

// An Offered is a network that is published as a device of the node.
type Offered struct {
	Device     string            `json:"device"`  // empty means that it is made of Network
	Network    string            `json:"network"` // a definition, or the name of a file in confDir
	Exclusive  bool              `json:"exclusive"`
	Attributes map[string]string `json:"attributes"`
}

const (
	defaultCDIDir = "/var/run/cdi"
	maxDriverName = 63 // of the API
)

// The attributes that every device may have.
const (
	pluginAttribute = "plugin" // the type of the first plugin
	masterAttribute = "master" // its key of that name
)

// UnmarshalJSON refuses unknown keys: a misspelt "exclusive" would share a network.
func (d *DRA) UnmarshalJSON(text []byte) error {
	type plain DRA
	object := json.NewDecoder(bytes.NewReader(text))
	object.DisallowUnknownFields()
	return object.Decode((*plain)(d))
}

// check validates d and fills in the names of devices.
func (d *DRA) check() error {
	if d.Driver == "" {
		return errors.New("driver: missing: the name of the driver in DeviceClasses")
	}
	if why := validation.IsDNS1123Subdomain(d.Driver); len(why) > 0 || len(d.Driver) > maxDriverName {
		return fmt.Errorf("driver %q is not a DNS subdomain of at most %d characters", d.Driver, maxDriverName)
	}
	if d.CDIDir != "" && !filepath.IsAbs(d.CDIDir) {
		return fmt.Errorf("cdiDir %q is not an absolute path", d.CDIDir)
	}
	networks, devices := map[string]bool{}, map[string]bool{}
	for i := range d.Networks {
		o := &d.Networks[i]
		if err := o.check(); err != nil {
			return fmt.Errorf("networks[%d]: %w", i, err)
		}
		if networks[o.Network] {
			return fmt.Errorf("networks[%d]: network %q is listed twice", i, o.Network)
		}
		if devices[o.Device] {
			return fmt.Errorf("networks[%d]: two networks are the device %q", i, o.Device)
		}
		networks[o.Network], devices[o.Device] = true, true
	}
	return nil
}

func (o *Offered) check() error {
	_, named, definition := strings.Cut(o.Network, "/")
	switch {
	case o.Network == "":
		return errors.New("network: missing")
	case definition:
		if _, err := nad.ParseRef(o.Network, ""); err != nil {
			return fmt.Errorf("network %q is not namespace/name of a NetworkAttachmentDefinition", o.Network)
		}
	default:
		named = o.Network
	}
	o.Device = cmp.Or(o.Device, label(named))
	return o.device(map[string]string{pluginAttribute: "", masterAttribute: ""}).Check()
}

// label makes a DNS label of the name of a network.
func label(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '-':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, name)
	return strings.Trim(name[:min(len(name), validation.DNS1123LabelMaxLength)], "-")
}

// ref returns the definition that o names, if it names one.
func (o Offered) ref() (nad.Ref, bool) {
	if !strings.Contains(o.Network, "/") {
		return nad.Ref{}, false
	}
	r, err := nad.ParseRef(o.Network, "")
	return r, err == nil
}

// device returns the device of o. Its own attributes replace those that are found.
func (o Offered) device(found map[string]string) dra.Device {
	d := dra.Device{Name: o.Device, Exclusive: o.Exclusive, Attributes: map[string]string{}}
	maps.Copy(d.Attributes, found)
	maps.Copy(d.Attributes, o.Attributes)
	return d
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
