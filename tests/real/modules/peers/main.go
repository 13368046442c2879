// Peers of the controller on Go: each watches Jobs as its library's documentation says, and appends what it is told to a
// file, one write a line.
//
//	listed                  it has made its first list
//	present NAME VERSION    a version of a Job
//	gone NAME               the end of a Job
//
// Names are never used again in a run, so a name stands for an object. A file that is appended to keeps what was written
// when its writer is killed: no database could keep more.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/go-logr/logr"
)

// pause is how long the exporter waits before it lists again.
const pause = time.Second

func main() {
	// controller-runtime has a flag --kubeconfig of its own.
	flags := flag.NewFlagSet("peers", flag.ExitOnError)
	peer := flags.String("peer", "", "informer, controller-runtime or exporter")
	kubeconfig := flags.String("kubeconfig", "", "the kubeconfig of the cluster")
	file := flags.String("file", "", "the file to append to")
	fail(flags.Parse(os.Args[1:]))
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	fail(err)
	out, err := os.OpenFile(*file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	fail(err)
	notes := &notes{file: out}
	switch *peer {
	case "informer":
		informer(config, notes)
	case "controller-runtime":
		controllerRuntime(config, notes)
	case "exporter":
		exporter(config, notes)
	default:
		fail(fmt.Errorf("there is no peer %q", *peer))
	}
}

type notes struct {
	mutex sync.Mutex
	file  *os.File
}

func (n *notes) add(format string, words ...any) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	_, err := fmt.Fprintf(n.file, format+"\n", words...)
	fail(err)
}

func (n *notes) present(object metav1.Object) {
	n.add("present %s %s", object.GetName(), object.GetResourceVersion())
}

// informer is client-go's shared informer without a resync. A deletion that it missed comes as DeletedFinalStateUnknown.
func informer(config *rest.Config, notes *notes) {
	clients, err := kubernetes.NewForConfig(config)
	fail(err)
	factory := informers.NewSharedInformerFactory(clients, 0)
	jobs := factory.Batch().V1().Jobs().Informer()
	_, err = jobs.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { notes.present(object.(*batchv1.Job)) },
		UpdateFunc: func(_, object any) { notes.present(object.(*batchv1.Job)) },
		DeleteFunc: func(object any) {
			key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
			fail(err)
			_, name, err := cache.SplitMetaNamespaceKey(key)
			fail(err)
			notes.add("gone %s", name)
		},
	})
	fail(err)
	factory.Start(context.Background().Done())
	if !cache.WaitForCacheSync(context.Background().Done(), jobs.HasSynced) {
		fail(fmt.Errorf("the cache is not in sync"))
	}
	notes.add("listed")
	select {}
}

// controllerRuntime reconciles: it is told that an object changed, and looks at what is in the cache.
func controllerRuntime(config *rest.Config, notes *notes) {
	log.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	fail(batchv1.AddToScheme(scheme))
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	fail(err)
	look := reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		var job batchv1.Job
		err := manager.GetClient().Get(ctx, request.NamespacedName, &job)
		switch {
		case err == nil:
			notes.present(&job)
		case client.IgnoreNotFound(err) == nil:
			notes.add("gone %s", request.Name)
			err = nil
		}
		return reconcile.Result{}, err
	})
	fail(ctrl.NewControllerManagedBy(manager).For(&batchv1.Job{}).Complete(look))
	go func() {
		if manager.GetCache().WaitForCacheSync(context.Background()) {
			notes.add("listed")
		}
	}()
	fail(manager.Start(context.Background()))
}

// exporter is the way of programs that write Events of a dynamic watch into a database as they come: a list, and a
// RetryWatcher from its version on, which goes on over broken connections. When the version has expired it lists again.
func exporter(config *rest.Config, notes *notes) {
	clients, err := dynamic.NewForConfig(config)
	fail(err)
	jobs := clients.Resource(batchv1.SchemeGroupVersion.WithResource("jobs"))
	ctx, isFirst := context.Background(), true
	for ; ; time.Sleep(pause) {
		list, err := jobs.List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for index := range list.Items {
			notes.present(&list.Items[index])
		}
		if isFirst {
			notes.add("listed")
			isFirst = false
		}
		watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return jobs.Watch(ctx, options)
			},
		})
		if err != nil {
			continue
		}
		follow(watcher, notes)
		watcher.Stop()
	}
}

// follow returns when the watch has to begin anew.
func follow(watcher watch.Interface, notes *notes) {
	for event := range watcher.ResultChan() {
		object, isObject := event.Object.(*unstructured.Unstructured)
		switch event.Type {
		case watch.Added, watch.Modified:
			if isObject {
				notes.present(object)
			}
		case watch.Deleted:
			if isObject {
				notes.add("gone %s", object.GetName())
			}
		case watch.Error:
			if apierrors.IsGone(apierrors.FromObject(event.Object)) || !isObject {
				return
			}
		}
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}
