package e2e

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// TestS6HotPlug: what is plugged into a running container through the daemon is
// listed with the rest, known to CHECK and GC, and removed by the DEL of the
// sandbox, or before by its own.
func TestS6HotPlug(t *testing.T) {
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
		r, err := w.ask(http.MethodPost, wire.PathDelegate, w.request(command, &hot, object{"interfaceAttributes": object{"mac": "02:00:00:00:77:01"}}))
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
	r, err := w.ask(http.MethodGet, wire.PathDelegate+"?container="+p.id, nil)
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

// TestS6HotPlugAndDEL: the DEL of the sandbox comes while a network is plugged
// in: that is undone, and nothing is left.
func TestS6HotPlugAndDEL(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{keys: object{"binDir": w.bin}})
	p := w.pod(w.thick("1.1.0", w.fake("a")))
	w.ok("ADD", p)
	hot := *p
	hot.conf, hot.ifname = w.with(w.fake("h", "ADD", "gate"), object{"name": "fakes", "cniVersion": "1.1.0"}), "hot0"
	body := w.request("ADD", &hot, nil)
	answered := make(chan reply, 1)
	go func() {
		r, err := w.ask(http.MethodPost, wire.PathDelegate, body)
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
