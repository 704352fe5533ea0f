package webhook_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/metacni/metacni/delegate/kube/webhook"
	"github.com/metacni/metacni/netconf/nad"
)

// A handler reviews definitions with the rules of an ADD. In a program [webhook.Serve]
// serves it.
func Example() {
	h := webhook.Handler{Definition: func(d nad.Definition) error {
		_, err := d.Network(nad.Rules{Own: []string{"my-meta"}})
		return err
	}}
	body := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{
		"uid":"705ab4f5","operation":"CREATE","kind":{"group":"k8s.cni.cncf.io","version":"v1","kind":"NetworkAttachmentDefinition"},
		"object":{"metadata":{"namespace":"default","name":"storage"},"spec":{"config":"{\"type\":\"my-meta\"}"}}}}`
	r := httptest.NewRequest(http.MethodPost, "/validate", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	fmt.Println(answer.Code, strings.Contains(answer.Body.String(), `"allowed":false`))
	// Output: 200 true
}
