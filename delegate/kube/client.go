package kube

import (
	"context"
	"net/http"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// A client makes the requests of one API group and version. With it client-go neither logs,
// as errors are returned, nor repeats a request.
type client struct{ group rest.Interface }

// do makes a request, which describe describes.
func (c client) do(ctx context.Context, verb string, describe func(*rest.Request)) rest.Result {
	return c.request(verb, describe).Do(quiet(ctx))
}

// watch begins a watch.
func (c client) watch(ctx context.Context, describe func(*rest.Request)) (watch.Interface, error) {
	return c.request(http.MethodGet, describe).Watch(quiet(ctx))
}

func (c client) request(verb string, describe func(*rest.Request)) *rest.Request {
	r := c.group.Verb(verb).MaxRetries(0)
	describe(r)
	return r
}

// quiet returns a context with which client-go logs nothing.
func quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, logr.Discard()) }

// clients makes the clients of v. A full clientset would link every API group that
// Kubernetes has; these four are all that is used. None limits its rate: the server's
// fairness decides. The time of each request is that of its context.
func (v *View) clients() error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, eventsv1.AddToScheme, resourcev1.AddToScheme, metav1.AddMetaToScheme, addDefinitions} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	for _, c := range []struct {
		to      *client
		path    string
		version schema.GroupVersion
		content string
	}{
		{&v.core, "/api", corev1.SchemeGroupVersion, runtime.ContentTypeProtobuf},
		{&v.events, "/apis", eventsv1.SchemeGroupVersion, runtime.ContentTypeProtobuf},
		{&v.resources, "/apis", resourcev1.SchemeGroupVersion, runtime.ContentTypeProtobuf},
		{&v.nads, "/apis", definitionVersion, runtime.ContentTypeJSON},
	} {
		config, httpClient := v.REST()
		config.APIPath = c.path
		config.ContentConfig = rest.ContentConfig{
			GroupVersion: &c.version, NegotiatedSerializer: codecs,
			ContentType: c.content, AcceptContentTypes: c.content,
		}
		made, err := rest.RESTClientForConfigAndClient(config, httpClient)
		if err != nil {
			return err
		}
		*c.to = client{made}
	}
	return nil
}

// REST returns what another client of the same API server needs, such as a clientset:
//
//	set, err := kubernetes.NewForConfigAndClient(view.REST())
//
// It shares the credentials, which are read again when they change, the connections, the
// UserAgent and the Observer of v. The address in the configuration stands for that of the
// server. The client sends protobuf where there is such a form, and limits neither its rate nor
// the time of a request. The caller may change what REST returns.
func (v *View) REST() (*rest.Config, *http.Client) {
	return &rest.Config{
		Host: "http://" + placeholder,
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
		QPS:            -1,
		WarningHandler: rest.NoWarnings{},
	}, &http.Client{Transport: v.transport}
}
