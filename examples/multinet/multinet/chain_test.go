package multinet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const auxiliary = `"auxiliaryCNIChainName":"vendor"`

// The auxiliary chain is one more network of every container, after all others. Its
// first plugin receives an empty result.
func TestAuxiliaryChain(t *testing.T) {
	t.Parallel()
	for _, namespace := range []string{"a", "kube-system"} {
		h := newHost(t, "1.1.0")
		h.write(t, "net.d/vendor/20-second.conf", `{"type":"tuning","x":1.0}`)
		h.write(t, "net.d/vendor/10-first.conf", `{"type":"macvlan"}`)
		h.write(t, "net.d/vendor/readme.txt", `{`)
		conf := keys(bridge, auxiliary, annotated("fast"))
		h.mustRun(t, "ADD", conf, podOf(namespace))
		in := h.stdin(t, 2)
		if diff := cmp.Diff(map[string]any{
			"cniVersion": "1.1.0", "name": "vendor", "type": "macvlan", "prevResult": map[string]any{"cniVersion": "1.1.0"},
		}, in); diff != "" {
			t.Errorf("stdin of the first plugin (-want +got):\n%s", diff)
		}
		if prev := h.stdin(t, 3)["prevResult"]; !cmp.Equal(prev.(map[string]any)["ips"], []any{map[string]any{"address": "10.9.1.2/24"}}) {
			t.Errorf("the second plugin was given %v", prev)
		}
		wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1", "ADD macvlan net2", "ADD tuning net2")
		h.mustRun(t, "CHECK", conf)
		wantTrace(t, h, "CHECK bridge eth0", "CHECK macvlan net1", "CHECK macvlan net2", "CHECK tuning net2")
		h.mustRun(t, "STATUS", conf)
		wantTrace(t, h, "STATUS bridge", "STATUS macvlan", "STATUS tuning")
		h.mustRun(t, "DEL", bridge)
		wantTrace(t, h, "DEL tuning net2", "DEL macvlan net2", "DEL macvlan net1", "DEL bridge eth0")
		h.clean(t)
	}
}

// Multus looks for the chain beside the file clusterNetwork. confDir comes first.
func TestAuxiliaryChainBesideTheClusterNetwork(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.write(t, "autoconf/10-pods.conf", `{"name":"pods","type":"bridge"}`)
	h.write(t, "autoconf/vendor/10.conf", `{"type":"tuning"}`)
	conf := keys(`"clusterNetwork":"`+h.dir+`/autoconf/10-pods.conf"`, auxiliary)
	h.mustRun(t, "ADD", conf)
	h.mustRun(t, "DEL", conf)
	wantTrace(t, h, "ADD bridge eth0", "ADD tuning net1", "DEL tuning net1", "DEL bridge eth0")
	h.write(t, "net.d/vendor/10.conf", `{"type":"macvlan"}`)
	h.mustRun(t, "ADD", conf)
	wantTrace(t, h, "ADD bridge eth0", "ADD macvlan net1")
}

func TestAuxiliaryChainWithoutFilesIsNone(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.write(t, "net.d/vendor/readme.txt", "x")
	for _, name := range []string{auxiliary, `"auxiliaryCNIChainName":"absent"`, `"auxiliaryCNIChainName":""`} {
		h.mustRun(t, "ADD", keys(bridge, name))
		h.mustRun(t, "DEL", keys(bridge, name))
		wantTrace(t, h, "ADD bridge eth0", "DEL bridge eth0")
	}
}

// A chain that cannot be read fails the ADD: pods would silently lack a network.
func TestBadAuxiliaryChain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, file string
		code       uint
		says       []string
	}{
		{`"vendor"`, `{"type":`, 6, []string{"auxiliaryCNIChainName", "10.conf"}},
		{`"vendor"`, `{"name":"x"}`, 7, []string{"auxiliaryCNIChainName", "10.conf", "type"}},
		{`"vendor"`, `{"type":"../x"}`, 7, []string{"../x"}},
		{`"vendor"`, `{"type":"full"}`, 107, []string{"vendor", "no free device"}},
		{`"../net.d/vendor"`, `{"type":"tuning"}`, 7, []string{"auxiliaryCNIChainName"}},
		{`".."`, `{"type":"tuning"}`, 7, []string{"auxiliaryCNIChainName"}},
		{`5`, `{"type":"tuning"}`, 6, []string{"auxiliaryCNIChainName"}},
	} {
		h := newHost(t, "1.1.0")
		h.write(t, "net.d/vendor/10.conf", tt.file)
		wantError(t, h.run(t, "ADD", keys(bridge, `"auxiliaryCNIChainName":`+tt.name)), tt.code, tt.says...)
		if tt.code != 107 {
			wantTrace(t, h)
		}
		h.clean(t)
	}
}

// The directory of the chain is the administrator's: no pod reaches a file in it.
func TestAuxiliaryChainIsNoNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t, "1.1.0")
	h.write(t, "net.d/vendor/secret.conf", `{"name":"secret","type":"macvlan"}`)
	h.write(t, "net.d/a/d.conf", `{"name":"vendor","loadOnlyInlinedPlugins":false,"plugins":[{"type":"tuning"}]}`)
	for _, namespace := range []string{"a", "vendor"} {
		for _, selection := range []string{annotated("vendor/secret"), defaultNetwork("vendor/secret")} {
			wantError(t, h.run(t, "ADD", keys(bridge, auxiliary, selection), podOf(namespace)), 7, "secret", "no such network")
		}
	}
	wantTrace(t, h)
	h.mustRun(t, "ADD", keys(bridge, annotated("d")), podOf("a")) // gets the name, but not the plugins
	wantTrace(t, h, "ADD bridge eth0", "ADD tuning net1")
}
