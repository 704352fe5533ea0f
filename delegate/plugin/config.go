package plugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
)

// Config decodes the configuration of c into a T. For ADD and STATUS it is as
// strict as [netconf.Decode]. DEL, CHECK and GC must work even if somebody has
// broken the configuration after the ADD. For them Config ignores a key given twice,
// and leaves out each key whose value does not fit T: it fails only if the
// configuration is not a JSON object. Every error is a [*netconf.Error].
//
// A key without which a command would look for its records in another place must
// not be left out: read it with [Call.Value].
func Config[T any](c *Call) (T, error) {
	v, err := netconf.Decode[T](c.StdinData)
	if err == nil || c.strict() {
		return v, err
	}
	var keys map[string]json.RawMessage
	if json.Unmarshal(c.StdinData, &keys) != nil || keys == nil {
		return v, err
	}
	for key, value := range members(c.StdinData) {
		text, _ := json.Marshal(map[string]json.RawMessage{key: value}) // cannot fail: it was decoded
		if json.Unmarshal(text, new(T)) == nil {
			_ = json.Unmarshal(text, &v)
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
	if json.Unmarshal(c.StdinData, &conf) != nil { // a key given twice does not matter
		if _, err := netconf.Decode[lists](c.StdinData); err != nil {
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
	err = c.Value("name", &c.Name)
	if others := errors.Join(c.Value("type", &c.Type), c.Value("cniVersion", &c.CNIVersion)); c.strict() {
		err = errors.Join(err, others)
	}
	c.CNIVersion = cmp.Or(c.CNIVersion, "0.1.0")
	return err
}

// Value decodes one key of the configuration into value, a pointer, exactly as
// encoding/json and libcni do: keys match whatever their case, and of several the
// last counts. Without such a key Value leaves value unchanged. An error is a
// [*netconf.Error] of the kind [netconf.ErrDecode].
//
// Value is strict for every command. DEL, CHECK and GC must use it only for keys
// that they cannot do without, such as the directory of the records; see [Config].
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
		for key, raw := range members(c.StdinData) {
			if slices.Contains(matches, key) {
				values = append(values, raw)
			}
		}
	}
	for _, raw := range values {
		if err := json.Unmarshal(raw, value); err != nil {
			return &netconf.Error{Kind: netconf.ErrDecode, Network: c.Name, Key: name, Err: err}
		}
	}
	return nil
}

// members yields the keys and values of object, which has been decoded before, in
// their order.
func members(object []byte) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		in := json.NewDecoder(bytes.NewReader(object))
		_, _ = in.Token() // the brace
		for in.More() {
			var value json.RawMessage
			token, _ := in.Token()
			_ = in.Decode(&value)
			if key, ok := token.(string); !ok || !yield(key, value) {
				return
			}
		}
	}
}
