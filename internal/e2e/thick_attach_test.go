package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// TestDaemonAttachesOneMoreNetwork: what is plugged into a running container through the daemon is
// listed with the rest, known to CHECK and GC, and removed by the DEL of the
// sandbox, or before by its own.
func TestDaemonAttachesOneMoreNetwork(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{keys: object{"binDir": w.bin}})
	p := w.pod(w.thick("1.1.0", w.bridge(1), w.fake("a")))
	other := w.pod(w.thick("1.1.0", w.fake("other")))
	w.ok("ADD", p)
	w.ok("ADD", other)
	plug := func(command, ifname string, conf object) reply {
		t.Helper()
		hot := *p
		hot.conf, hot.ifname = conf, ifname
		r, err := w.ask(http.MethodPost, wire.PathAttach, w.request(command, &hot, object{"interfaceAttributes": object{"mac": "02:00:00:00:77:01"}}))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	green := w.with(w.bridge(5), object{"name": w.name("green"), "cniVersion": "1.0.0", "capabilities": object{"mac": true}})
	fakes := w.with(w.fake("h"), object{"name": "fakes", "cniVersion": "1.1.0", "capabilities": object{"mac": true}})
	w.isResult(plug("ADD", "hot0", green))
	w.isResult(plug("ADD", "hot1", fakes))
	plug("ADD", "hot1", fakes).says(t, http.StatusInternalServerError, 7, "hot1")
	same(t, "interfaces", []string{"eth0", "hot0"}, w.interfaces(p))
	same(t, "MAC", "02:00:00:00:77:01", w.find(p, "hot0").MAC)
	same(t, "listed", []string{"eth0 added", "net1 added", "hot0 added", "hot1 added"}, w.attachments(p))
	same(t, "listed", []string{"eth0 added"}, w.attachments(other))
	for _, ifname := range []string{"hot0", "hot1"} {
		if r := plug("CHECK", ifname, fakes); r.status != http.StatusOK {
			t.Errorf("CHECK %s: %s", ifname, r.body)
		}
	}
	w.ok("CHECK", p)
	w.ok("GC", p, valid(p, other))
	same(t, "interfaces", []string{"eth0", "hot0"}, w.interfaces(p))

	for range 2 {
		if r := plug("DEL", "hot1", fakes); r.status != http.StatusOK {
			t.Errorf("DEL hot1: %s", r.body)
		}
	}
	same(t, "listed", []string{"eth0 added", "net1 added", "hot0 added"}, w.attachments(p))
	w.isResult(plug("ADD", "hot1", fakes))
	w.ok("DEL", p, withoutNetNS)
	same(t, "interfaces", nil, w.interfaces(p))
	same(t, "listed", nil, w.attachments(p))
	w.ok("DEL", other)
	w.noTrace()
}

// attachments lists what the daemon says p is attached to.
func (w *world) attachments(p *pod) (list []string) {
	w.t.Helper()
	r, err := w.ask(http.MethodGet, wire.PathAttach+"?container="+p.id, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []struct{ ContainerID, IfName, State string }
	if err := json.Unmarshal(r.body, &all); err != nil {
		w.t.Fatalf("%v: %s", err, r.body)
	}
	for _, a := range all {
		if a.ContainerID != p.id {
			w.t.Errorf("%+v is not of %s", a, p.id)
		}
		list = append(list, a.IfName+" "+a.State)
	}
	return list
}

// TestDELCancelsAnAttachInTheDaemon: the DEL of the sandbox comes while a network is plugged
// in: that is undone, and nothing is left.
func TestDELCancelsAnAttachInTheDaemon(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{keys: object{"binDir": w.bin}})
	p := w.pod(w.thick("1.1.0", w.fake("a")))
	w.ok("ADD", p)
	hot := *p
	hot.conf, hot.ifname = w.with(w.fake("h", "ADD", "gate"), object{"name": "fakes", "cniVersion": "1.1.0"}), "hot0"
	body := w.request("ADD", &hot, nil)
	answered := make(chan reply, 1)
	go func() {
		r, err := w.ask(http.MethodPost, wire.PathAttach, body)
		if err != nil {
			t.Error(err)
		}
		answered <- r
	}()
	w.ready()
	w.ok("DEL", p, withoutNetNS)
	r := <-answered
	r.says(t, http.StatusInternalServerError, 11)
	w.noTrace()
}

// TestMultusClientAttachesAndDetaches: real plugins attach and detach what Multus's own
// client, multus-dynamic-networks-controller, asks for. Its arguments name the
// pod and do not tell plugins to ignore what they do not know.
func TestMultusClientAttachesAndDetaches(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{keys: object{"binDir": w.bin}})
	p := w.pod(w.thick("1.1.0", w.bridge(1)))
	w.ok("ADD", p)
	// The definition of a network as it is in Kubernetes, white space and all.
	definition := fmt.Sprintf(`{
		"cniVersion": "1.0.0", "name": %q, "type": "bridge", "bridge": %q, "capabilities": {"mac": true},
		"ipam": {"type": "host-local", "subnet": "%s.0/24"}
	}`, w.name("green"), w.name("br5-"), w.net(5))
	ask := func(command, attributes string) reply {
		t.Helper()
		// The client's struct, in the order of its fields; a map has sorted keys.
		body := fmt.Sprintf(`{"env":{"CNI_ARGS":"K8S_POD_NAMESPACE=default;K8S_POD_NAME=%s;K8S_POD_UID=4f8c","CNI_COMMAND":%q,`+
			`"CNI_CONTAINERID":%q,"CNI_IFNAME":"net1","CNI_NETNS":%q},"config":%q%s}`,
			p.id, command, p.id, p.netns, base64.StdEncoding.EncodeToString([]byte(definition)), attributes)
		r, err := w.ask(http.MethodPost, wire.PathAttach, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, attributes := range []string{``, `,"interfaceAttributes":{"mac":"02:00:00:00:77:01","cni-args":null}`} {
		w.isResult(ask("ADD", attributes))
		same(t, "interfaces", []string{"eth0", "net1"}, w.interfaces(p))
		w.ok("CHECK", p)
		if r := ask("DEL", attributes); r.status != http.StatusOK {
			t.Errorf("DEL: %s", r.body)
		}
		same(t, "interfaces", []string{"eth0"}, w.interfaces(p))
		same(t, "addresses", 1, len(w.leases()))
	}
	// What is asked and cannot be done is refused, and undone by nobody.
	ask("ADD", `,"interfaceAttributes":{"ips":["10.9.1.7/24"],"cni-args":null}`).says(t, http.StatusInternalServerError, 7, `"ips"`, w.name("green"))

	w.isResult(ask("ADD", ``))
	w.ok("DEL", p)
	same(t, "interfaces", nil, w.interfaces(p))
	w.noTrace()
}
