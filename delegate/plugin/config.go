package plugin

import (
	"cmp"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/rawjson"
	"github.com/metacni/metacni/netconf"
)

// Config decodes the configuration of c into a T. For ADD and STATUS it is as
// strict as [netconf.Decode]. DEL, CHECK and GC must work even if somebody has
// broken the configuration after the ADD: for them Config takes the last value of a key given
// twice, leaves out each key whose value does not fit T, a struct or a map, and fails, with
// [netconf.ErrDecode], only if the configuration is not a JSON object. Every error is a
// [*netconf.Error].
//
// A key without which a command would look for its records in another place must
// not be left out: read it with [Call.Value].
func Config[T any](c *Call) (T, error) {
	if c.strict() {
		return netconf.Decode[T](c.Config)
	}
	var v T
	if object := rawjson.Scan(c.Config); object.Space() != '{' || !json.Valid(c.Config) {
		return netconf.Decode[T](c.Config) // which says why
	}
	if json.Unmarshal(c.Config, &v) == nil {
		return v, nil
	}
	v = *new(T)
	for key, value := range rawjson.Members(c.Config) {
		one, err := rawjson.Marshal(map[string]json.RawMessage{key: value})
		if err == nil && json.Unmarshal(one, new(T)) == nil {
			_ = json.Unmarshal(one, &v)
		}
	}
	return v, nil
}

// strict reports whether mistakes in any key make c fail.
func (c *Call) strict() bool {
	return c.Command == delegate.CommandAdd || c.Command == delegate.CommandStatus
}

// Invalid returns an error that says that key in the configuration is invalid, and
// why: a [*netconf.Error] of the kind [netconf.ErrInvalid], CNI code 7.
func (c *Call) Invalid(key string, err error) error {
	return &netconf.Error{Kind: netconf.ErrInvalid, Network: c.Name, Key: key, Err: err}
}

// Valid returns the runtime's list of valid attachments, from the configuration of
// a GC. It reads both keys that versions of libcni use. Nil means that the
// configuration has no list; an empty list is not nil. Valid fails with
// [netconf.ErrInvalid] if an element lacks containerID or ifname, because GC would
// delete the attachment that it stands for.
func (c *Call) Valid() ([]types.GCAttachment, error) {
	const current, former = "cni.dev/valid-attachments", "cni.dev/attachments"
	type lists struct {
		Valid  []types.GCAttachment `json:"cni.dev/valid-attachments"`
		Former []types.GCAttachment `json:"cni.dev/attachments"` // of libcni 1.1
	}
	var conf lists
	if json.Unmarshal(c.Config, &conf) != nil { // a key given twice does not matter
		if _, err := netconf.Decode[lists](c.Config); err != nil {
			return nil, err
		}
	}
	key := current
	if conf.Valid == nil {
		key, conf.Valid = former, conf.Former
	}
	for _, a := range conf.Valid {
		if a.ContainerID == "" || a.IfName == "" {
			return nil, c.Invalid(key, errors.New("an element lacks containerID or ifname"))
		}
	}
	return conf.Valid, nil
}

// PodAnnotationsCapability is the capability with which a runtime passes on the annotations
// of a pod. The configuration has to declare it:
//
//	"capabilities": {"io.kubernetes.cri.pod-annotations": true}
const PodAnnotationsCapability = "io.kubernetes.cri.pod-annotations"

// PodAnnotations returns the annotations of the pod with these names, as the runtime passes
// them in runtimeConfig. An annotation that the pod does not have is not in the map. Nil
// means that the runtime passes no annotations, so that it is not known which the pod has.
//
// containerd and CRI-O pass them with ADD, CHECK and DEL, as they were when the pod's
// sandbox was created. GC and STATUS are about no pod and have none. podman passes none at
// all. A DEL should not need them: it works from the record.
//
// PodAnnotations fails with [netconf.ErrDecode] if one of names is not a string. Others may
// be of any type.
func (c *Call) PodAnnotations(names ...string) (map[string]string, error) {
	var args map[string]json.RawMessage
	if err := c.Value("runtimeConfig", &args); err != nil || args[PodAnnotationsCapability] == nil {
		return nil, err
	}
	fail := func(key, want string) error {
		return &netconf.Error{
			Kind: netconf.ErrDecode, Network: c.Name, Key: "runtimeConfig." + PodAnnotationsCapability + key, Err: errors.New(want),
		}
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(args[PodAnnotationsCapability], &all) != nil {
		return nil, fail("", "not an object")
	}
	annotations := make(map[string]string)
	for _, name := range names {
		if all[name] == nil {
			continue
		}
		var value string
		if json.Unmarshal(all[name], &value) != nil {
			return nil, fail("."+name, "not a string")
		}
		annotations[name] = value
	}
	return annotations, nil
}

// stateDir returns the directory of the records as a path of this process.
func (p Plugin) stateDir(c *Call) (string, error) {
	dir := p.StateDir
	if p.StateKey != "" {
		var chosen string
		if err := c.Value(p.StateKey, &chosen); err != nil {
			return "", err
		}
		dir = cmp.Or(chosen, dir)
	}
	onNode, err := c.System.Root.Node(dir)
	if err == nil {
		_, err = CheckStateDir(onNode)
	}
	if err == nil {
		dir, err = c.System.Root.Resolve(filepath.Clean(dir))
	}
	if err != nil {
		return "", c.Invalid(p.StateKey, err)
	}
	return dir, nil
}

// CheckStateDir returns dir, cleaned. It fails if dir is not absolute, or is a
// directory in which container runtimes keep their own state.
func CheckStateDir(dir string) (string, error) {
	dir = filepath.Clean(dir)
	switch {
	case !filepath.IsAbs(dir):
		return "", errors.New("not an absolute path")
	case dir == "/var/lib/cni" || dir == "/var/lib/cni/results":
		return "", errors.New("the runtime keeps its own state there")
	}
	return dir, nil
}

// decode checks the configuration, and reads the keys that every plugin has. It reads them of an
// invalid configuration too, as far as it can.
func (c *Call) decode() error {
	_, invalid := Config[map[string]json.RawMessage](c)
	err := c.Value("name", &c.Name)
	if others := errors.Join(c.Value("type", &c.Type), c.Value("cniVersion", &c.CNIVersion)); c.strict() {
		err = errors.Join(err, others)
	}
	c.CNIVersion = cmp.Or(c.CNIVersion, "0.1.0")
	return cmp.Or(invalid, err)
}

// Value decodes one key of the configuration into value, a pointer, exactly as
// encoding/json and libcni do: keys match whatever their case, and of several the
// last counts. For ADD and STATUS two values are an error, except for "name" and "cniVersion",
// which libcni adds to what the user has written. Without such a key Value leaves value
// unchanged. An error is a [*netconf.Error] of the kind [netconf.ErrDecode].
//
// Value is strict for every command. DEL, CHECK and GC must use it only for keys
// that they cannot do without, such as the directory of the records; see [Config].
func (c *Call) Value(name string, value any) error {
	var found json.RawMessage
	for key, raw := range rawjson.Members(c.Config) {
		if !strings.EqualFold(key, name) {
			continue
		}
		err := json.Unmarshal(raw, value)
		if err == nil && found != nil && c.strict() && name != "name" && name != "cniVersion" && !rawjson.Same(found, raw) {
			err = errors.New("given twice, with two values: remove one")
		}
		if err != nil {
			return &netconf.Error{Kind: netconf.ErrDecode, Network: c.Name, Key: name, Err: err}
		}
		found = raw
	}
	return nil
}
