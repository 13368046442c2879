// The peer on client-go: a shared informer and a workqueue, as in any controller, with nothing
// behind them. It ends when it has been told of as many states as it was asked for and its queue
// is empty. Built by `cargo xtask bench` with Debian's packages.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: %s SERVER STATES", os.Args[0]))
	}
	states, err := strconv.ParseInt(os.Args[2], 10, 64)
	fail(err)
	client, err := rest.RESTClientFor(&rest.Config{
		Host:    os.Args[1],
		APIPath: "/apis",
		// No limit of its own: what is measured is how fast it reads.
		QPS: -1,
		ContentConfig: rest.ContentConfig{
			GroupVersion:         &batchv1.SchemeGroupVersion,
			NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
			ContentType:          "application/json",
		},
	})
	fail(err)

	queue := workqueue.New()
	var told int64
	enqueue := func(object interface{}) {
		key, err := cache.MetaNamespaceKeyFunc(object)
		fail(err)
		queue.Add(key)
		if atomic.AddInt64(&told, 1) == states {
			// Hands out what is still queued, then ends the workers.
			queue.ShutDown()
		}
	}
	informer := cache.NewSharedIndexInformer(
		cache.NewListWatchFromClient(client, "jobs", "", fields.Everything()),
		&batchv1.Job{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, object interface{}) { enqueue(object) },
		DeleteFunc: enqueue,
	})
	stop := make(chan struct{})
	go informer.Run(stop)
	for {
		key, ended := queue.Get()
		if ended {
			return
		}
		if _, _, err := informer.GetIndexer().GetByKey(key.(string)); err != nil {
			fail(err)
		}
		queue.Done(key)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "client-go peer:", err)
		os.Exit(1)
	}
}
