//! t
use ashlar_model::*;
fn main(){ for (g,bws,spd) in [(Group{devices:30,k:10,m:4},vec![4e6,8e6,12e6],100.0),(Group{devices:60,k:4,m:2},vec![4e6,8e6,16e6],30.0),(Group{devices:41,k:8,m:2},vec![10e6,20e6,40e6],500.0),(Group{devices:20,k:4,m:2},vec![4e6,8e6,16e6],100.0),(Group{devices:100,k:16,m:3},vec![20e6,30e6],60.0)] { for bw in bws {
 let a=Assumptions{afr:0.9,device_bytes:1e13,bandwidth:bw,unreadable_per_bit:0.0,latent_per_year:0.0,segments_per_device:spd,..Assumptions::default()};
 let r=GroupRates::new(g,&a); let c=r.chain(g).mean_times()[0].value();
 let e=Simulation{trials:100,seed:5}.by_segments(g,&a);
 println!("{g:?} bw {bw:.0e} spd {spd}: ratio {:.2} +- {:.2}; {:.1} rebuilds per failure interval; worse {:?}", e.mean/c, e.stderr/c, 1.0/(r.repair[1]*r.failure*f64::from(g.devices)), &r.worse.iter().map(|x| (x*100.0).round()/100.0).collect::<Vec<_>>()); } } }
