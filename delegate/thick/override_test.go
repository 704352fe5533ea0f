package thick

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/thick/wire"
)

func TestOverrideAndConfigurationMustBeObjects(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{``, `null`, `[]`, `{"a":1,}`, `{}{}`, strings.Repeat("[", 20000)} {
		m := request("ADD", "c1")
		m.Config = []byte(odd)
		s := &Server{Commands: (&fake{}).commands(), Override: json.RawMessage(`{"a":1}`)}
		_, err := decode(wire.PathCNI, &m, nil, s.service().override)
		refused(t, err, 6, "the configuration is not a JSON object")

		// The server's own: it does not begin.
		if odd == "" {
			continue
		}
		s = &Server{Commands: (&fake{}).commands(), Override: json.RawMessage(odd)}
		l := newInMemory()
		if err := s.Serve(t.Context(), l); err == nil || !strings.Contains(err.Error(), "Override is not a JSON object") {
			t.Errorf("%.20q: Serve: %v", odd, err)
		}
		if _, err := l.Accept(); err == nil {
			t.Error("the listener is open")
		}
	}
}

// The override reaches the plugin.
func TestOverrideReachesThePlugin(t *testing.T) {
	t.Parallel()
	f := &fake{}
	s := &Server{Commands: f.commands(), Override: json.RawMessage(`{"binDir":"/host/bin","NAME":"other"}`)}
	m := request("ADD", "c1")
	o, err := decode(wire.PathCNI, &m, nil, s.service().override)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(o.args.StdinData), `{"NAME":"other","binDir":"/host/bin","cniVersion":"1.1.0","type":"multinet"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if o.network != "other" {
		t.Errorf("network %q", o.network)
	}
}
