package delegate

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/metacni/metacni/netconf"
)

// What a plugin prints is a result or it is not. A result can be decoded, can
// be the prevResult of the next plugin, reads back as itself, and has every key
// as it was printed. Nothing panics.
func FuzzReadResult(f *testing.F) {
	for _, seed := range []string{
		"", " \n", "{}", "null", "[]", "7", `"x"`, "{", `{"a":1}{"b":2}`, "loading\n{}", `{} done`, `{}}`, "{\"a\":\"\xff\"}",
		`{"cniVersion":"1.0.0"}`, `{"cniVersion":null}`, `{"cniVersion":1}`, `{"cniVersion":""}`, `{"CNIVERSION":"0.4.0"}`, `{"cniversion":""}`,
		`{"cniVersion":"0.4.0","cniVersion":"1.0.0"}`, `{"cniVersion":"9.0.0"}`, `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}`,
		`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":1500}],"ips":[{"address":"10.1.0.2/24","interface":0}],"x":9007199254740993,"y":"<&>"}`,
		`{"cniVersion":"1.0.0","ips":[{"address":"nonsense"}]}`, `{"ips":5}`,
	} {
		for _, version := range []string{"", "0.1.0", "0.4.0", "1.1.0"} {
			f.Add([]byte(seed), version)
		}
	}
	next, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"p"}]}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, stdout []byte, version string) {
		stdin := []byte(`{"password":"hunter2!hunter2!","type":"p"}`)
		before := bytes.Clone(stdout)
		result, err := readResult(stdout, version, stdin)
		if !bytes.Equal(before, stdout) {
			t.Fatal("readResult changed its input")
		}
		if err != nil {
			if !errors.Is(err, ErrResult) || result != nil {
				t.Fatalf("%q: %q, %v", stdout, result, err)
			}
			return
		}
		if _, err := decodeResult(result); err != nil {
			t.Fatalf("%q became %q, which does not decode: %v", stdout, result, err)
		}
		if _, err := next.Request(0, netconf.Request{PrevResult: result}); err != nil {
			t.Fatalf("%q became %q, which cannot be prevResult: %v", stdout, result, err)
		}
		again, err := readResult(result, version, stdin)
		if err != nil || !bytes.Equal(again, result) {
			t.Fatalf("%q reads back as %q: %v", result, again, err)
		}
		var printed, kept map[string]json.RawMessage
		if err := errors.Join(json.Unmarshal(stdout, &printed), json.Unmarshal(result, &kept)); err != nil {
			t.Fatal(err)
		}
		for key, raw := range printed {
			if strings.EqualFold(key, "cniVersion") {
				continue
			}
			var want, got bytes.Buffer
			if err := errors.Join(json.Compact(&want, raw), json.Compact(&got, kept[key])); err != nil {
				t.Fatal(err)
			}
			if want.String() != got.String() {
				t.Fatalf("key %q: %s became %s", key, raw, kept[key])
			}
		}
	})
}

// Whatever decodes as a result can be asked for in every version: that succeeds
// or fails, without a panic, and what it makes decodes again, in that version.
func FuzzConvert(f *testing.F) {
	versions := []string{"", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	for _, version := range versions[1:] {
		for _, seed := range []string{
			`{}`, `{"cniVersion":"V"}`, `{"cniVersion":"V","ips":[null]}`, `{"cniVersion":"V","interfaces":[null],"routes":[null]}`,
			`{"cniVersion":"V","ips":[{}]}`, `{"cniVersion":"V","ip4":{}}`, `{"cniVersion":"V","ip4":{"ip":"10.0.0.2/24","gateway":"10.0.0.1","routes":[{"dst":"0.0.0.0/0"},{"dst":"10.0.0.0/8","gw":"10.0.0.1"}]},"ip6":{"ip":"fd00::2/64","routes":[null]}}`,
			`{"cniVersion":"V","ips":[{"version":"4","address":"10.0.0.2/24","interface":9}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"search":[null]}}`,
			`{"cniVersion":"V","ips":[{"address":"10.0.0.2/24"},{"address":"10.0.0.3/24"},{"address":"fd00::2/64"}],"interfaces":[{}]}`,
			`{"cniVersion":"V","ips":[{"version":"5","address":"::ffff:10.0.0.2/120","gateway":""}],"routes":[{"dst":"::/0","gw":"x"}],"dns":null}`,
			`{"cniVersion":"V","IPS":[{"Address":"10.0.0.2/24"}],"routes":[{"dst":"10.0.0.0/8","mtu":1,"advmss":2,"priority":3,"table":4,"scope":5}]}`,
		} {
			f.Add([]byte(strings.ReplaceAll(seed, `"V"`, `"`+version+`"`)))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decodeResult(text)
		if err != nil {
			if r != nil {
				t.Fatalf("%q: %v, %v", text, r, err)
			}
			return
		}
		for _, version := range versions {
			printed, err := convert(r, version)
			if err != nil {
				if strings.Contains(err.Error(), "panic") {
					t.Errorf("%q in %q: %v", text, version, err)
				}
				continue
			}
			if again, err := decodeResult(printed); err != nil || version != "" && again.Version() != version {
				t.Errorf("%q in %q is %s: %v", text, version, printed, err)
			}
		}
	})
}
