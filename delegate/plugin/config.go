package plugin

import (
	"cmp"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
)

// Config decodes the configuration of c into a T. ADD and STATUS are strict, as
// [netconf.Decode] is. DEL, CHECK and GC ignore mistakes in keys that T does not
// have, such as a key given twice: they must work from the record when the
// configuration has been broken since the ADD. Every error is a
// [*netconf.Error].
func Config[T any](c *Call) (T, error) {
	if c.Command == delegate.CommandAdd || c.Command == delegate.CommandStatus {
		return netconf.Decode[T](c.StdinData)
	}
	return lenient[T](c.StdinData)
}

func lenient[T any](stdin []byte) (T, error) {
	strict, err := netconf.Decode[T](stdin)
	if err == nil {
		return strict, nil
	}
	var v *T // which null leaves nil
	if json.Unmarshal(stdin, &v) == nil && v != nil {
		return *v, nil
	}
	return strict, err
}

// Invalid returns the error that key of c's configuration is invalid because of
// err: a [*netconf.Error] of the kind [netconf.ErrInvalid], CNI code 7.
func (c *Call) Invalid(key string, err error) error {
	return &netconf.Error{Kind: netconf.ErrInvalid, Network: c.Name, Key: key, Err: err}
}

// Valid reads the runtime's list of valid attachments from the configuration of
// a GC. Both keys are read that libcni has given it. Nil means that there is no
// list, which is not an empty one. An element that names no attachment fails
// with [netconf.ErrInvalid]: whatever it was meant to keep would be deleted.
func (c *Call) Valid() ([]types.GCAttachment, error) {
	const current, former = "cni.dev/valid-attachments", "cni.dev/attachments"
	conf, err := netconf.Decode[struct {
		Valid  []types.GCAttachment `json:"cni.dev/valid-attachments"`
		Former []types.GCAttachment `json:"cni.dev/attachments"` // of libcni 1.1
	}](c.StdinData)
	key := current
	if conf.Valid == nil {
		key, conf.Valid = former, conf.Former
	}
	for _, a := range conf.Valid {
		if a.ContainerID == "" || a.IfName == "" {
			return nil, c.Invalid(key, errors.New("an element lacks containerID or ifname"))
		}
	}
	return conf.Valid, err
}

// stateDir is the directory of the records, as a path of this process.
func (p Plugin) stateDir(c *Call) (string, error) {
	dir := p.StateDir
	if p.StateKey != "" {
		var chosen string
		if err := c.Value(p.StateKey, &chosen); err != nil {
			return "", err
		}
		dir = cmp.Or(chosen, dir)
	}
	dir, err := CheckStateDir(c.Root.OnNode(dir))
	if err != nil {
		return "", c.Invalid(p.StateKey, err)
	}
	path, err := c.Root.Resolve(dir)
	if err != nil {
		return "", c.Invalid(p.StateKey, err)
	}
	return path, nil
}

// CheckStateDir returns dir, cleaned. It fails where a plugin must not keep state
// of its own: in a path that depends on the working directory, and in the
// directories of runtimes.
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

// decode reads the keys of the configuration, and those that every one has.
func (c *Call) decode() (err error) {
	if c.keys, err = Config[map[string]json.RawMessage](c); err != nil {
		return err
	}
	err = errors.Join(c.Value("name", &c.Name), c.Value("type", &c.Type), c.Value("cniVersion", &c.CNIVersion))
	c.CNIVersion = cmp.Or(c.CNIVersion, "0.1.0")
	return err
}

// Value decodes the value of one key of the configuration into value, as
// encoding/json does: a key in other letters counts where it is missing itself,
// and without either value stays as it is. An error is a [*netconf.Error] of the
// kind [netconf.ErrDecode].
func (c *Call) Value(name string, value any) error {
	found := name
	if _, ok := c.keys[name]; !ok {
		for key := range c.keys {
			if strings.EqualFold(key, name) && (found == name || key < found) {
				found = key
			}
		}
	}
	raw, ok := c.keys[found]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(raw, value); err != nil {
		return &netconf.Error{Kind: netconf.ErrDecode, Network: c.Name, Key: name, Err: err}
	}
	return nil
}
