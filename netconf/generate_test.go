package netconf_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// generated is a random network configuration.
type generated struct {
	data   string // as this package reads it
	libcni string // with what libcni would fail on, and we do not, put right
	reject bool   // whether we fail where libcni does not
}

// exact reports whether libcni reads the same bytes.
func (g generated) exact() bool { return g.data == g.libcni }

// generator makes configurations, most of them good.
type generator struct{ *rand.Rand }

func (g generator) oneIn(n int) bool { return g.IntN(n) == 0 }

// pick returns one of good, now and then one of bad.
func (g generator) pick(good, bad []string) string {
	if len(bad) > 0 && g.oneIn(40) {
		return bad[g.IntN(len(bad))]
	}
	return good[g.IntN(len(good))]
}

func (g generator) network() generated {
	var ours, theirs []string
	reject := false
	both := func(key, value string) {
		ours = append(ours, fmt.Sprintf("%q:%s", key, value))
		theirs = append(theirs, fmt.Sprintf("%q:%s", key, value))
	}
	versions := []string{`"0.1.0"`, `"0.2.0"`, `"0.3.0"`, `"0.3.1"`, `"0.4.0"`, `"1.0.0"`, `"1.1.0"`}
	bad := []string{`null`, `7`, `true`, `{}`, `"x.y"`}

	switch g.IntN(20) {
	case 0: // absent
		theirs = append(theirs, `"name":"n"`)
	case 1:
		both("name", g.pick([]string{`""`, `"../n"`, `"a/b"`, `"_"`}, nil))
		reject = true
	default:
		both("name", g.pick([]string{`"n"`, `"a-b"`, `"N.1_x"`}, []string{`null`, `3`, `["n"]`}))
	}
	if !g.oneIn(5) {
		both("cniVersion", g.pick(append(versions, `"2.0.0"`), append(bad, `""`)))
	}
	if g.oneIn(3) {
		var list []string
		for range g.IntN(6) {
			list = append(list, g.pick(append(versions, `"1.2.0"`, `"9.9"`, `"1.0"`), append(bad, `"1.2.3.4"`, `""`)))
		}
		both("cniVersions", g.pick([]string{"[" + strings.Join(list, ",") + "]"}, []string{`null`, `"1.0.0"`, `{}`}))
	}
	for _, key := range []string{"disableCheck", "disableGC", "loadOnlyInlinedPlugins"} {
		if g.oneIn(4) {
			both(key, g.pick([]string{`true`, `false`, `"true"`, `"FALSE"`, `"True"`}, []string{`null`, `0`, `"yes"`, `""`, `[]`}))
		}
	}
	if g.oneIn(3) {
		both("unknown", g.value())
	}
	if g.oneIn(15) {
		reject = true
	} else {
		var a, b []string
		for range 1 + g.IntN(3) {
			p, q := g.plugin()
			a, b = append(a, p), append(b, q)
		}
		value := g.pick([]string{""}, []string{`null`, `[]`, `{}`, `"bridge"`, `[null]`, `[7]`})
		if value == "" {
			ours = append(ours, `"plugins":[`+strings.Join(a, ",")+`]`)
			theirs = append(theirs, `"plugins":[`+strings.Join(b, ",")+`]`)
		} else {
			both("plugins", value)
		}
	}
	return generated{"{" + strings.Join(ours, ",") + "}", "{" + strings.Join(theirs, ",") + "}", reject}
}

// plugin returns a plugin, and what of it libcni can read.
func (g generator) plugin() (ours, theirs string) {
	keys := map[string][2]string{}
	both := func(key, value string) { keys[key] = [2]string{value, value} }
	both("type", g.pick([]string{`"bridge"`, `"portmap"`, `"tuning"`}, []string{`""`, `null`, `1`, `[]`}))
	if g.oneIn(20) {
		delete(keys, "type")
	}
	if g.oneIn(4) {
		both("name", g.pick([]string{`"own"`, `""`, `null`}, []string{`7`, `{}`}))
	}
	if g.oneIn(4) {
		both("cniVersion", g.pick([]string{`"0.2.0"`, `""`}, []string{`7`}))
	}
	if g.oneIn(3) {
		both("ipam", g.pick([]string{`{}`, `null`, `{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"}]]}`}, []string{`"dhcp"`, `{"type":5}`, `[]`}))
	}
	if g.oneIn(4) {
		both("dns", g.pick([]string{`{}`, `{"nameservers":["10.0.0.1"],"x":1}`}, []string{`"x"`, `{"domain":1}`}))
	}
	if g.oneIn(4) {
		both("prevResult", g.pick([]string{`{}`, `null`, `{"cniVersion":"1.0.0","ips":[]}`}, []string{`[]`, `"x"`}))
	}
	if g.oneIn(4) {
		both("runtimeConfig", g.pick([]string{`{"own":1}`, `{}`, `null`, `7`}, nil))
	}
	if g.oneIn(2) {
		caps := map[string]string{"mac": "true", "ips": "false", "portMappings": "true", "none": "true"}
		if g.oneIn(2) {
			delete(caps, "portMappings")
		}
		good := render(caps)
		keys["capabilities"] = [2]string{good, good}
		if g.oneIn(10) {
			caps["odd"] = g.pick([]string{`"true"`, `1`, `{}`}, nil)
			keys["capabilities"] = [2]string{render(caps), good}
		} else if g.oneIn(20) {
			keys["capabilities"] = [2]string{`"mac"`, `{}`}
		}
	}
	both("unknown", g.value())
	if g.oneIn(20) {
		keys["huge"] = [2]string{`1e999`, `1`}
	}
	a, b := map[string]string{}, map[string]string{}
	for key, value := range keys {
		a[key], b[key] = value[0], value[1]
	}
	return render(a), render(b)
}

// value returns any JSON value that libcni can read.
func (g generator) value() string {
	return g.pick([]string{`null`, `1.50`, `9007199254740993`, `-0`, `"<&>\u2028\ud800"`, `[[],{"b":[1,{"a":2}]}]`, `{"x":{"":1}}`}, nil)
}

// render writes an object.
func render(keys map[string]string) string {
	var parts []string
	for key, value := range keys {
		parts = append(parts, fmt.Sprintf("%q:%s", key, value))
	}
	slices.Sort(parts)
	return "{" + strings.Join(parts, ",") + "}"
}
