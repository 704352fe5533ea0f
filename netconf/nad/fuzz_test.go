package nad_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/nadfile"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// checkError holds an error of the package against its contract.
func checkError(t *testing.T, err error) {
	t.Helper()
	e, ok := err.(*nad.Error)
	if !ok {
		t.Fatalf("error is a %T", err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has more than a line: %q", err)
	}
	known := errors.Is(err, netconf.ErrDecode) || errors.Is(err, netconf.ErrInvalid) || errors.Is(err, netconf.ErrNotFound) || errors.Is(err, nad.ErrForbidden)
	if !known || !slices.Contains([]uint{4, 6, 7}, fault.Code(e, 999)) {
		t.Errorf("error of code %d: %v", fault.Code(e, 999), err)
	}
	if e.Ref != (nad.Ref{}) && e.Ref.Validate() != nil {
		t.Errorf("error is about %q", e.Ref)
	}
}

// Whatever names a pod gives, namespaceIsolation holds and no reference leads elsewhere. TestPolicy
// has what is allowed.
func FuzzPolicy(f *testing.F) {
	for _, use := range []nad.Use{nad.Selected, nad.PodDefault, nad.Attached, nad.Claimed, ""} {
		f.Add("a", "b", "blue", string(use), "default,b")
		f.Add("", "", "../x", string(use), "..,")
	}
	f.Fuzz(func(t *testing.T, pod, namespace, name, use, global string) {
		p := nad.Policy{Isolation: true, GlobalNamespaces: strings.Split(global, ",")}
		r, err := p.Ref(pod, netconf.Selection{Namespace: namespace, Name: name}, nad.Use(use))
		if err == nil && use != string(nad.Cluster) && use != string(nad.Default) {
			var attach bool
			attach, err = p.Decide(pod, r, nad.Use(use))
			if attach && (err != nil || r.Namespace != pod && !slices.Contains(p.GlobalNamespaces, r.Namespace) || path.Clean("/"+r.String()) != "/"+r.String()) {
				t.Errorf("a pod of %q gets %v, %v", pod, r, err)
			}
		}
		if err != nil {
			checkError(t, err)
		}
	})
}

func FuzzDefinition(f *testing.F) {
	for _, config := range []string{
		"", "x", "{}", `{"name":"","type":"x","n":12345678901234567890}`, `{"name":"chain","plugins":[{"type":"x","ipam":{"type":"a/b"},"IPAM":{"Type":"own"}}]}`,
		`{"type":"own"}`, `{"type":"x","args":{"cni":1}}`, `{"cniVersion":"9.9.9","type":"x"}`, `{"name":"","z":1e999,"type":"x"}`, "{\"type\":\"..\"}",
	} {
		f.Add([]byte(`{"metadata":{"name":"blue","namespace":"ns"}}`), config)
		quoted, err := json.Marshal(config)
		nodetest.OK(f, err)
		f.Add([]byte(object(`,"spec":{"config":`+string(quoted)+`}`, `,"uid":"u","annotations":{"k8s.v1.cni.cncf.io/resourceName":"r"}`)), config)
	}
	rules := nad.Rules{CNIVersion: "1.1.0", Own: []string{"own"}, ConfDir: files(map[string]string{"1.conf": `{"name":"blue","type":"from-a-file"}`, "chain/1.conf": `{"type":"administrators"}`})}
	f.Fuzz(func(t *testing.T, data []byte, config string) {
		d, err := nad.Parse(data)
		if err != nil {
			checkError(t, err)
			d = nad.Definition{Ref: blue}
		}
		for _, d := range []nad.Definition{d, {Ref: d.Ref, UID: d.UID, Version: d.Version, Resource: d.Resource, Config: config}} {
			checkNetwork(t, d, rules)
			checkMirror(t, d)
		}
	})
}

func checkNetwork(t *testing.T, d nad.Definition, rules nad.Rules) {
	t.Helper()
	n, err := d.Network(rules)
	if err != nil {
		checkError(t, err)
		if !strings.HasPrefix(err.Error(), "NAD "+d.String()+": ") {
			t.Errorf("the error does not name %s: %v", d.Ref, err)
		}
		return
	}
	if err := n.Runnable(); err != nil || n.CNIVersion() == "" {
		t.Errorf("%s: %v", d.Config, err)
	}
	for i, p := range n.Plugins() {
		if strings.ContainsAny(p.Type(), "/\\\x00") || p.Type() == ".." || p.Type() == "own" || p.Type() == "administrators" {
			t.Errorf("type %q", p.Type())
		}
		var seen struct{ IPAM struct{ Type string } } // as a plugin sees it
		request, err := n.Request(i, netconf.Request{})
		nodetest.OK(t, err)
		if json.Unmarshal(request, &seen) == nil && (strings.ContainsAny(seen.IPAM.Type, "/\\\x00") || seen.IPAM.Type == "own") {
			t.Errorf("IPAM type %q", seen.IPAM.Type)
		}
		if _, err := n.EditPlugins(netconf.In("args", netconf.In("cni", netconf.Set("k", 1)))); err != nil {
			t.Errorf("cni-args cannot be merged: %v", err)
		}
	}
	again, err := d.Network(rules)
	if err != nil || !again.Equal(n) {
		t.Errorf("%v, then %v, %v", n, again, err)
	}
}

func checkMirror(t *testing.T, d nad.Definition) {
	t.Helper()
	fsys := fstest.MapFS{}
	if d.Validate() != nil || nadfile.TooLong(d.Name) {
		return
	}
	for _, f := range mirrored(d) {
		if path.Dir(f.Name) != d.Namespace || !strings.HasPrefix(path.Base(f.Name), d.Name+".") {
			t.Errorf("%s writes %s", d.Ref, f.Name)
		}
		if f.Data != nil {
			fsys[f.Name] = &fstest.MapFile{Data: bytes.Clone(f.Data)}
		}
	}
	if got, err := nad.Load(fsys, d.Ref); err != nil || got != d {
		t.Errorf("%+v is mirrored as %+v, %v", d, got, err)
	}
}

// Whatever lies in a mirror is a definition or an error.
func FuzzMirror(f *testing.F) {
	f.Add(mirrored(plugin)[0].Data, []byte(plugin.Config), []byte(nil))
	f.Add([]byte(nil), []byte("{}"), []byte("{}"))
	f.Add([]byte(`{"uid":1}`), []byte(nil), []byte("{}"))
	f.Fuzz(func(t *testing.T, key, conf, conflist []byte) {
		fsys := fstest.MapFS{}
		for name, data := range map[string][]byte{"ns/blue.key": key, "ns/blue.conf": conf, "ns/blue.conflist": conflist} {
			if len(data) > 0 {
				fsys[name] = &fstest.MapFile{Data: data}
			}
		}
		d, err := nad.Load(fsys, blue)
		if fault.Code(err, 999) == 11 {
			return
		}
		if err != nil {
			checkError(t, err)
			return
		}
		if d.Ref != blue || d.Config != string(conf) && d.Config != string(conflist) {
			t.Errorf("%+v", d)
		}
	})
}

// Whatever is recorded as an origin can be read, and what was read can be recorded: it is
// JSON, and reads as the same.
func FuzzOrigin(f *testing.F) {
	for _, data := range []string{
		"", "null", "{", `{"use":"selected","definition":"ns/blue","uid":"u","version":"7","selection":{"name":"blue"},"podSource":"api"}`,
		`{"definition":"../x"}`, `{"selection":"<&>"}`, `{"use":"\ud800"}`, "{\"uid\":\"\xff\"}", `{"selection":null}`, `{"selection": [ 1 , 2.0 ]}`,
	} {
		f.Add([]byte(data))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		o := nad.ParseOrigin(data)
		if o.Definition != (nad.Ref{}) && o.Definition.Validate() != nil {
			t.Errorf("definition %q", o.Definition)
		}
		recorded := o.JSON()
		if recorded != nil && (!json.Valid(recorded) || !utf8.Valid(recorded)) {
			t.Errorf("recorded as %q", recorded)
		}
		if again := nad.ParseOrigin(recorded).JSON(); !bytes.Equal(again, recorded) {
			t.Errorf("recorded as %s, then as %s", recorded, again)
		}
	})
}
