package delegate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/rawjson"
	"github.com/metacni/metacni/internal/redact"
	"github.com/metacni/metacni/netconf"
)

// readResult returns the result in stdout, which a successful ADD with stdin
// printed. A result is one JSON object, with one value for each key, that can be decoded in
// its version. Without a cniVersion its version is that of the configuration, as
// in the specification. As for libcni, null is an empty result.
//
// An error object is no result, whatever the exit status says: then the plugin has failed
// with that error.
func readResult(stdout []byte, confVersion string, stdin []byte) (json.RawMessage, error) {
	if said := errorObject(stdout); said != nil && said.Code != types.ErrUnknown && said.Msg != "" {
		return nil, redacted(said, stdin)
	}
	result, err := parseResult(stdout, confVersion, stdin)
	if err != nil {
		// Decoders quote what they cannot read. So keep the text alone, without
		// its secrets, and not the error.
		return nil, fmt.Errorf("%w: %s", ErrResult, redact.Values(stdin).Hide(err.Error()))
	}
	return result, nil
}

func parseResult(stdout []byte, confVersion string, stdin []byte) (json.RawMessage, error) {
	text := trim(stdout)
	switch {
	case len(text) == 0:
		return nil, errors.New("nothing on stdout")
	case string(text) == "null": // which decodes into an empty result
		text = []byte("{}")
	case text[0] == '[' && json.Valid(text):
		return nil, errors.New("stdout is an array, want an object")
	case text[0] == '[':
		return nil, errors.New(`stdout starts with "["`)
	case text[0] != '{':
		return nil, fmt.Errorf("stdout starts with %s", noise(text, stdin))
	}
	version, err := resultVersion(text)
	if err != nil {
		return nil, notOneObject(text, stdin, err)
	}
	if repeats(text, stdin) {
		return nil, errors.New("stdout repeats the configuration")
	}
	if version == "" {
		var keys map[string]json.RawMessage
		_ = json.Unmarshal(text, &keys) // cannot fail: it was decoded
		maps.DeleteFunc(keys, func(key string, _ json.RawMessage) bool { return strings.EqualFold(key, "cniVersion") })
		keys["cniVersion"], _ = json.Marshal(confVersion) // a string always marshals
		text, _ = rawjson.Marshal(keys)                   // cannot fail: its values were decoded
	}
	if _, err := decodeResult(text); err != nil {
		return nil, err
	}
	return bytes.Clone(text), nil
}

// errorObject returns the error object that a plugin printed, alone or after
// other lines, or nil.
func errorObject(stdout []byte) *types.Error {
	for _, text := range [][]byte{stdout, stdout[bytes.LastIndex(stdout, []byte("\n{"))+1:]} {
		var e types.Error
		if err := json.Unmarshal(text, &e); err == nil && (e.Code != types.ErrUnknown || e.Msg != "") {
			return &e
		}
	}
	return nil
}

// notOneObject says why text, which begins with a bracket, is not one JSON
// object. If it is one, notOneObject returns err.
func notOneObject(text, stdin []byte, err error) error {
	var object json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&object); err != nil {
		return err
	}
	if after := trim(text[dec.InputOffset():]); len(after) > 0 {
		return fmt.Errorf("after it stdout goes on with %s", noise(after, stdin))
	}
	return err
}

// repeats reports whether text, which is valid JSON, differs from conf in white
// space only. conf has none.
func repeats(text, conf []byte) bool {
	if len(text) < len(conf) {
		return false
	}
	var packed bytes.Buffer
	_ = json.Compact(&packed, text) // cannot fail: it is valid
	return bytes.Equal(packed.Bytes(), conf)
}

// trim removes white space in the sense of JSON from both ends.
func trim(text []byte) []byte { return bytes.Trim(text, " \t\r\n") }

// resultVersion returns the cniVersion of a result, which may be empty. It fails
// if the result could not be handed to a plugin as prevResult.
func resultVersion(result []byte) (string, error) {
	v, err := netconf.Decode[struct {
		CNIVersion string `json:"cniVersion"`
	}](result)
	return v.CNIVersion, err
}

// decodeResult decodes a result that has a cniVersion. This is the only place
// that decides what a result is: a JSON object that can be decoded into the type
// of its version, without null in its lists.
func decodeResult(text []byte) (types.Result, error) {
	if !bytes.HasPrefix(trim(text), []byte("{")) {
		return nil, errors.New("not an object") // null would decode
	}
	if bounds.Deeper(text, bounds.Depth) {
		return nil, fmt.Errorf("nested more deeply than %d levels", bounds.Depth)
	}
	r, err := create.CreateFromBytes(text)
	if err == nil {
		err = refuseNulls(text)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// refuseNulls fails for a result with null in a list. The types of the cni
// library accept it, and panic or invent values when they are converted.
func refuseNulls(result []byte) error {
	type values []json.RawMessage
	var lists struct { // keys match in any case
		Interfaces, IPs, Routes values
		IP4, IP6                struct{ Routes values }
		DNS                     struct{ Nameservers, Search, Options values }
	}
	_ = json.Unmarshal(result, &lists) // a field of another type has no nulls
	for _, list := range []struct {
		key    string
		values values
	}{
		{"interfaces", lists.Interfaces},
		{"ips", lists.IPs},
		{"routes", lists.Routes},
		{"ip4.routes", lists.IP4.Routes},
		{"ip6.routes", lists.IP6.Routes},
		{"dns.nameservers", lists.DNS.Nameservers},
		{"dns.search", lists.DNS.Search},
		{"dns.options", lists.DNS.Options},
	} {
		for i, value := range list.values {
			if string(value) == "null" {
				return fmt.Errorf("%s[%d] is null", list.key, i)
			}
		}
	}
	return nil
}

// convert returns the text of r, which has been decoded, in another version. It fails if
// that version has no place for all addresses: versions up to 0.2.0 have one for each
// family. It also fails if the outcome is not a result, for example if an address
// is "<nil>".
func convert(r types.Result, version string) (text json.RawMessage, err error) {
	defer catch(&err) // the converters are not ours
	to, err := r.GetAsVersion(version)
	if err != nil {
		return nil, err
	}
	if _, old := to.(*types020.Result); old {
		all, err := types100.NewResultFromResult(r)
		if err != nil {
			return nil, err
		}
		families := make(map[bool]int)
		for _, ip := range all.IPs {
			families[ip.Address.IP.To4() != nil]++
		}
		if families[true] > 1 || families[false] > 1 {
			return nil, errors.New("it has more than one address of a family")
		}
	}
	if text, err = json.Marshal(to); err == nil {
		_, err = decodeResult(text)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}
