package plugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
)

// Config decodes the configuration of c into a T. For ADD and STATUS it is as
// strict as [netconf.Decode]. For DEL, CHECK and GC it ignores mistakes in keys that
// T does not have, such as a key given twice: these commands must work even if
// somebody has broken the configuration after the ADD. Every error is a
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

// decode reads the configuration: all keys, and those that every plugin has.
func (c *Call) decode() (err error) {
	if c.keys, err = Config[map[string]json.RawMessage](c); err != nil {
		return err
	}
	err = errors.Join(c.Value("name", &c.Name), c.Value("type", &c.Type), c.Value("cniVersion", &c.CNIVersion))
	c.CNIVersion = cmp.Or(c.CNIVersion, "0.1.0")
	return err
}

// Value decodes one key of the configuration into value, a pointer, exactly as
// encoding/json and libcni do: keys match whatever their case, and of several the
// last counts. Without such a key Value leaves value unchanged. An error is a
// [*netconf.Error] of the kind [netconf.ErrDecode].
func (c *Call) Value(name string, value any) error {
	var matches []string
	for key := range c.keys {
		if strings.EqualFold(key, name) {
			matches = append(matches, key)
		}
	}
	values := make([]json.RawMessage, 0, 1)
	switch len(matches) {
	case 0:
	case 1:
		values = append(values, c.keys[matches[0]])
	default:
		values = inOrder(c.StdinData, matches)
	}
	for _, raw := range values {
		if err := json.Unmarshal(raw, value); err != nil {
			return &netconf.Error{Kind: netconf.ErrDecode, Network: c.Name, Key: name, Err: err}
		}
	}
	return nil
}

// inOrder returns the values of keys in the order in which object has them.
func inOrder(object []byte, keys []string) (values []json.RawMessage) {
	in := json.NewDecoder(bytes.NewReader(object))
	_, _ = in.Token() // the brace: object has been decoded before
	for in.More() {
		var value json.RawMessage
		token, _ := in.Token()
		_ = in.Decode(&value)
		if key, ok := token.(string); ok && slices.Contains(keys, key) {
			values = append(values, value)
		}
	}
	return values
}
